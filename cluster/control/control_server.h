// Hosts a job's key-value store and watches its members.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/control/control_client.h"
#include "tutti/cluster/control/member.h"
#include "tutti/cluster/control/verdict.h"
#include "tutti/cluster/handshake/job_secret.h"

namespace tutti {

/// When a member counts as what. Members learn the first three when they join, and judge the
/// server by them.
struct HealthOptions {
  Duration heartbeat_every = std::chrono::milliseconds(250);
  /// Without a heartbeat for this long, and the system says that the process is stopped (on the
  /// server's machine, where it can be asked): eight heartbeats, so that one late does not count.
  Duration silent_after = std::chrono::seconds(2);
  /// Without a heartbeat for this long, and nothing says why: the process runs and gets no time, or
  /// it is on another machine, and that or a link is silent. A switch that starts again, a queue
  /// that is full, packets lost several times in a row pass in less.
  Duration unreachable_after = std::chrono::seconds(5);
  /// On another machine a connection that closed, and none opened anew, for this long: dead. The
  /// system closes the connections of a process that ends; silence closes none.
  Duration reconnect_within = std::chrono::milliseconds(150);
  /// Members wait for each other, each in another collective: fatal. Longer than a busy machine
  /// needs to begin a call that the program has started.
  Duration abort_deadlock_after = std::chrono::seconds(1);
  /// Others wait in a collective for this long, and it does not come: a warning.
  Duration warn_stuck_after = std::chrono::milliseconds(4500);
  /// The same, and fatal.
  Duration abort_stuck_after = std::chrono::seconds(60);
  /// Members that do not acknowledge the step to stop at: not waited for any longer.
  Duration acknowledge_within = std::chrono::seconds(2);

  /// 100 ms, 400 ms and 1 s instead of 250 ms, 2 s and 5 s.
  static HealthOptions fast_detect() {
    HealthOptions options;
    options.heartbeat_every = std::chrono::milliseconds(100);
    options.silent_after = std::chrono::milliseconds(400);
    options.unreachable_after = std::chrono::seconds(1);
    return options;
  }
};

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
  Duration linger = std::chrono::seconds(2);
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
