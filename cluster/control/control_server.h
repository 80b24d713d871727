// ControlServer: hosts a job's key-value store and monitors the job's members.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cluster/control/member.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/cluster/net/job_secret.h"

namespace tutti {

/// Address, admitted tasks and failure detection of a control server.
struct ControlServerOptions {
  /// Address of this machine; port 0 selects a free port. It must be a loopback address if the
  /// server has neither a secret nor TLS, unless allow_insecure_network is set.
  std::string address = "127.0.0.1:0";
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  bool allow_insecure_network = false;
  bool allow_any_address = false;
  /// All tasks of the cluster; missing() lists those that have not joined.
  std::vector<MemberTask> expected = {};
  /// Additional tasks that may join; no member waits for them.
  std::vector<MemberTask> welcome = {};
  /// Task whose process hosts the server; "launcher" if the launcher hosts it.
  MemberTask host{"launcher", 0, ""};
  HealthOptions health = {};
  /// Time for which the destructor waits for members that have not left.
  Duration linger = durations::kLinger;
};

/// A running server of the gRPC service tutti.v1.Job (cluster/proto/job.proto), which any gRPC
/// client of the job can call. With a loopback address, it listens on a UNIX-domain socket that
/// only this user can access, not on a port. The destructor ends its threads. Thread-safe.
class ControlServer {
 public:
  /// Starts a server. Throws kUnavailable for an unusable address (naming the process that uses the
  /// port, if visible), kInvalidArgument if the server would admit unauthenticated peers, or
  /// kUnimplemented in a build without gRPC.
  static std::unique_ptr<ControlServer> start(const ControlServerOptions& options = {});
  virtual ~ControlServer() = default;

  /// Returns the address for clients, such as "grpc://127.0.0.1:4711".
  virtual std::string target() const = 0;
  virtual std::vector<Member> members() const = 0;
  std::vector<Verdict> verdicts() const { return verdicts_after(0); }
  /// Returns the verdicts whose numbers exceed `number`.
  virtual std::vector<Verdict> verdicts_after(std::uint64_t number) const = 0;
  /// Returns the absent tasks if a member is waiting for all tasks to join, otherwise an empty
  /// list.
  virtual std::vector<Member> missing() const = 0;
};

/// Returns true if this build has gRPC, and therefore control servers and clients.
bool control_has_grpc();

}  // namespace tutti
