// How a process joins its job, how workers reach each other, and when a member counts as lost.
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

class ProgressBoard;
struct Verdict;

struct ControlOptions {
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Restarts of this task before this process.
  std::uint64_t incarnation = 0;
  /// Whose process hosts the server, for messages: "chief 0".
  std::string hosted_by = {};
  /// For reaching the server; meanwhile a line every `say_every` names what it waits for.
  Duration timeout = durations::kJoinTimeout;
  Duration say_every = durations::kSayAgainEvery;
  /// Asked before each heartbeat; may be null.
  std::shared_ptr<ProgressBoard> progress = {};
  /// Called for each new verdict by the thread that sends heartbeats: return soon, and call nothing
  /// of the client but verdicts().
  std::function<void(const Verdict&)> on_verdict = {};
};

/// When a member counts as what. Members learn the first three when they join, and judge the
/// server by them.
struct HealthOptions {
  Duration heartbeat_every = durations::kHeartbeatEvery;
  /// Without a heartbeat for this long, and the system says that the process is stopped (on the
  /// server's machine, where it can be asked): eight heartbeats, so that one late does not count.
  Duration silent_after = durations::kSilentAfter;
  /// Without a heartbeat for this long, and nothing says why: all threads of the process sleep, or
  /// it is on another machine, and that or a link is silent. A switch that starts again, a queue
  /// that is full, packets lost several times in a row pass in less. A process of the server's
  /// machine of which a thread runs or waits for a processor is alive, however long it is silent.
  Duration unreachable_after = durations::kUnreachableAfter;
  /// Others wait in a collective for this long, and it does not come: a warning.
  Duration warn_stuck_after = durations::kSayAgainEvery;
  /// The same, and fatal.
  Duration abort_stuck_after = durations::kAbortStuckAfter;

  /// 100 ms, 400 ms and 1 s instead of 250 ms, 2 s and 5 s.
  static HealthOptions fast_detect() {
    HealthOptions options;
    options.heartbeat_every = std::chrono::milliseconds(100);
    options.silent_after = std::chrono::milliseconds(400);
    options.unreachable_after = std::chrono::seconds(1);
    return options;
  }
};

struct JoinOptions {
  /// Over those of the environment: job_id, secret and incarnation count when they are set.
  ControlOptions client = {};
  HealthOptions health = {};
  bool allow_insecure_network = false;
};

/// How the workers of a job find, reach and watch each other. The same on all workers, but for
/// addresses.
struct WorkerGroupOptions {
  /// How long the workers wait for each other at the start.
  Duration join_timeout = durations::kJoinTimeout;
  /// How bytes get from worker to worker.
  ConnectOptions::Way way = ConnectOptions::Way::kAuto;
  /// Where this worker listens for the others' messages ("0.0.0.0:5000"), and where they reach it
  /// ("203.0.113.7:31000"): for ports that are mapped on the way. Empty: as TUTTI_DATA_LISTEN and
  /// TUTTI_DATA_ADDRESS say; without those a free port of the task's own address.
  std::string listen_at = "";
  std::string reached_at = "";
  /// Secret, health, where the control server is: see there.
  JoinOptions join = {};
  /// For a group in a larger job, which begins anew as a whole: nobody is a replacement there. Gets
  /// every verdict, by a thread of the job, and returns whether that ends the group's calls. Those
  /// on its own workers do so anyhow.
  std::function<bool(const Verdict&)> ends_calls = {};
};

}  // namespace tutti
