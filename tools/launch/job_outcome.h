// How a job ended: each task, what stopped it, and the exit code that follows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/launch/exit_status.h"
#include "tutti/core/json.h"

namespace tutti::launch {

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
