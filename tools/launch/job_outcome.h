// How the tasks of a job end: what is started again, and the exit code that follows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/launch/child_process.h"
#include "tutti/core/clock.h"
#include "tutti/core/json.h"

namespace tutti::launch {

struct RestartLimits {
  int per_task = 0;
  int per_job = 0;
  /// A process that lives shorter has failed at once; after `quick_failures` such ends in a row it
  /// is not started again. In between the launcher waits longer each time.
  Duration quick = std::chrono::seconds(1);
  int quick_failures = 5;
};

/// What is left of the limits. Threads: one.
class RestartBudget {
 public:
  struct Decision {
    std::optional<Duration> delay;  // start again after that; empty: do not
    std::string reason;             // why not
  };

  RestartBudget(RestartLimits limits, int num_tasks);
  /// To be called once per failure; counts a restart when it allows one.
  Decision decide(int rank, const ExitStatus& status, Duration lived);
  int num_restarts(int rank) const;

 private:
  struct Task {
    int restarts = 0;
    int quick_failures = 0;  // in a row
  };
  RestartLimits limits_;
  std::vector<Task> tasks_;
  int restarts_ = 0;
};

/// Counts kills in the control group of this process (versions 1 and 2), or on the whole machine
/// where groups do not tell.
class OomCounter {
 public:
  OomCounter();
  /// Kills since the last call, or since construction.
  long take_new_kills();
  /// "cgroup oom_kill +1", or "oom_kill +1 on this machine".
  std::string describe(long kills) const;

 private:
  std::optional<long> read() const;

  std::string file_;  // with a line "oom_kill N"; empty: none
  bool of_cgroup_ = false;
  long last_ = 0;
};

/// Exit code of a program that was asked to stop and left a checkpoint.
inline constexpr int kStoppedOnRequest = 75;
/// Exit code of `tutti run` when --timeout was over, as of timeout(1).
inline constexpr int kTimedOut = 124;

/// Why the processes that still ran were ended.
enum class StopReason {
  kNone,       // all ended by themselves
  kFinished,   // chief and workers are done; parameter servers never end by themselves
  kFailure,    // one failed
  kSignal,     // the launcher got a signal
  kTaskAsked,  // one ended with kStoppedOnRequest
  kTimeout,
};

struct TaskOutcome {
  std::string task;  // "worker-0"
  pid_t pid = 0;
  int restarts = 0;
  ExitStatus status = {};  // of the last process
  double seconds = 0;      // that it lived
  std::string oom = "";    // what the kernel's counter said at its end
  int order = -1;          // 0 ended first; -1: has not

  /// "killed by signal 9 (SIGKILL), cgroup oom_kill +1, after 3.2 s".
  std::string describe() const;
};

struct JobOutcome {
  std::vector<TaskOutcome> tasks;    // by rank
  std::optional<int> first_failure;  // the rank whose failure ended the job
  StopReason reason = StopReason::kNone;

  int exit_code() const;
};

Json to_json(const JobOutcome& outcome);

}  // namespace tutti::launch
