// Hosts a job's key-value store and watches its members.
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

/// Where a control server listens, which tasks may join, and when a member counts as lost.
struct ControlServerOptions {
  /// Of this machine; port 0: a free one. Loopback, unless there is a secret or TLS.
  std::string address = "127.0.0.1:0";
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  bool allow_insecure_network = false;
  bool allow_any_address = false;
  /// All tasks of the cluster: who is missing is said of these.
  std::vector<MemberTask> expected = {};
  /// Further tasks that may come, or stay away: nobody waits for them.
  std::vector<MemberTask> welcome = {};
  /// In whose process it runs; the launcher is "launcher".
  MemberTask host{"launcher", 0, ""};
  HealthOptions health = {};
  /// The destructor waits this long for members that have not left.
  Duration linger = durations::kLinger;
};

/// A running server of the gRPC service tutti.v1.Job (cluster/proto/job.proto), which any gRPC
/// client of the job can call. At a loopback address it listens on a UNIX-domain socket that only
/// this user reaches, and on no port. Its threads end with it. Threads: any, all functions.
class ControlServer {
 public:
  /// Throws kUnavailable for an address that cannot be used (naming the process that has the port,
  /// when the system tells), kInvalidArgument for one that would let strangers in,
  /// kUnimplemented in a build without gRPC.
  static std::unique_ptr<ControlServer> start(const ControlServerOptions& options = {});
  virtual ~ControlServer() = default;

  /// "grpc://127.0.0.1:4711".
  virtual std::string target() const = 0;
  virtual std::vector<Member> members() const = 0;
  std::vector<Verdict> verdicts() const { return verdicts_after(0); }
  /// Those with higher numbers.
  virtual std::vector<Verdict> verdicts_after(std::uint64_t number) const = 0;
  /// Expected tasks that are not here while a member waits for all of them.
  virtual std::vector<Member> missing() const = 0;
};

/// Whether this build has gRPC, and with it control servers and clients.
bool control_has_grpc();

}  // namespace tutti
