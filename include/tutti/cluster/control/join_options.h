// Options for joining a job, connecting its workers and detecting lost members.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/cluster/net/connect_options.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/core/clock.h"

namespace tutti {

class ProgressTracker;
struct Verdict;

struct ControlOptions {
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Number of times that this task was restarted before this process started.
  std::uint64_t incarnation = 0;
  /// Name, for log lines and errors, of the process that hosts the server, such as "chief 0".
  std::string hosted_by = {};
  /// Timeout for reaching the server. While waiting, logs the server's name every `say_every`.
  Duration timeout = durations::kJoinTimeout;
  Duration say_every = durations::kSayAgainEvery;
  /// Source of the progress in each heartbeat; may be null.
  std::shared_ptr<ProgressTracker> progress = {};
  /// Called by the heartbeat thread with each new verdict. Must return quickly, and may call no
  /// client function except verdicts().
  std::function<void(const Verdict&)> on_verdict = {};
};

/// Limits of the failure detector. When members join, they receive the first three limits, which
/// they apply to the server.
struct HealthOptions {
  Duration heartbeat_every = durations::kHeartbeatEvery;
  /// Silence after which a member counts as stopped if the operating system reports its process as
  /// stopped (only possible on the server's machine). The default spans eight heartbeats, so that a
  /// single late heartbeat has no effect.
  Duration silent_after = durations::kSilentAfter;
  /// Silence after which a member counts as lost if its process is not known to have stopped. For
  /// example, all its threads may be asleep, or its machine or link may have failed. Shorter
  /// silences may have other causes, such as a restarting switch, a full queue or repeated packet
  /// loss. A process on the server's machine counts as alive as long as one of its threads runs or
  /// waits for a processor.
  Duration unreachable_after = durations::kUnreachableAfter;
  /// Time for which other members wait in a collective for a missing member before a warning is
  /// logged.
  Duration warn_stuck_after = durations::kSayAgainEvery;
  /// Time for which other members wait in a collective for a missing member before a fatal error is
  /// raised.
  Duration abort_stuck_after = durations::kAbortStuckAfter;

  /// Returns options that detect losses faster: heartbeat_every is 100 ms (default 250 ms),
  /// silent_after 400 ms (2 s) and unreachable_after 1 s (5 s).
  static HealthOptions fast_detect() {
    HealthOptions options;
    options.heartbeat_every = std::chrono::milliseconds(100);
    options.silent_after = std::chrono::milliseconds(400);
    options.unreachable_after = std::chrono::seconds(1);
    return options;
  }
};

struct JoinOptions {
  /// Options for the client. If job_id, secret or incarnation is set, it overrides the environment.
  ControlOptions client = {};
  HealthOptions health = {};
  bool allow_insecure_network = false;
};

/// Options for connecting and monitoring the workers of a job. Must be equal on all workers, except
/// for addresses.
struct WorkerGroupOptions {
  /// Timeout for the workers to join at the start.
  Duration join_timeout = durations::kJoinTimeout;
  /// Transport between workers.
  ConnectOptions::Way way = ConnectOptions::Way::kAuto;
  /// For mapped ports: the address on which this worker listens for messages from the other workers
  /// ("0.0.0.0:5000"), and the address at which they reach it ("203.0.113.7:31000"). Default:
  /// TUTTI_DATA_LISTEN and TUTTI_DATA_ADDRESS; if unset, a free port on the task's own address.
  std::string listen_at = "";
  std::string reached_at = "";
  /// Options for the control server: secret, failure detection and address.
  JoinOptions join = {};
  /// Set only for a group that is part of a larger job. That job restarts as a whole, so individual
  /// members are never replaced. Called with every verdict, on a thread of the job; returns true if
  /// the verdict ends the group's calls. Verdicts about the group's own workers always end them.
  std::function<bool(const Verdict&)> ends_calls = {};
};

}  // namespace tutti
