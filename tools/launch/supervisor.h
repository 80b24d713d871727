// Runs the processes of a job to their end: one loop in one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/job_plan.h"
#include "tools/launch/launcher_process.h"
#include "tools/launch/run_reporter.h"
#include "tutti/core/clock.h"

namespace tutti::launch {

struct RestartLimits {
  int per_task = 0;
  int per_job = 0;
};

/// What is left of the limits. Threads: one.
class RestartBudget {
 public:
  struct Decision {
    std::optional<Duration> delay;  // start again after that; empty: do not
    std::string reason;             // why not
  };

  RestartBudget(RestartLimits limits, int num_tasks);
  /// To be called once per failure; counts a restart when it allows one. A process that lived less
  /// than a second has failed at once, unless it was killed from outside: in between the launcher
  /// waits longer each time, and after five such ends in a row it is not started again.
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

/// A process that the job goes on without: it is stopped, or its connection is gone.
struct GivenUp {
  std::string task;  // "worker-0"
  int restarts = 0;  // which of the task's processes
  /// Most likely it is ending by itself, and then says best how: it is killed only if it still is
  /// there a second later.
  bool is_ending = false;
  std::string why;
};

/// A task that running processes wait for.
struct WaitedFor {
  std::string task;           // "worker-0"
  std::optional<int> joined;  // restarts of the task's last process that joined the job
};

/// A task's process after so many restarts.
struct TaskProcess {
  std::string task;  // "worker-0"
  int restarts = 0;
};

struct SupervisorOptions {
  RestartLimits restarts = {};
  Duration grace = std::chrono::seconds(30);       // between SIGTERM and SIGKILL
  std::optional<Duration> timeout = std::nullopt;  // of the whole job
  /// Asked some times a second, if it is there, for those given up since the last time: those that
  /// have not ended are killed, which is a failure like any other.
  std::function<std::vector<GivenUp>()> find_given_up = {};
  /// Asked when a process has failed, if it is there: all that the job knows to have failed, the
  /// cause first. Processes that end because of another's failure may do so before it.
  std::function<std::vector<TaskProcess>()> find_failed = {};
  /// Asked like find_given_up, for the tasks that running processes wait for. One that has ended
  /// with code 0 is started again when a process waits that was started again itself: it comes too
  /// late to go through the last steps with the others. Otherwise that end was too early, a
  /// failure.
  std::function<std::vector<WaitedFor>()> find_waited_for = {};
};

/// Starts the processes of a plan, passes signals on, starts failed ones again as the limits say,
/// and ends all when one fails for good. No process remains when run() returns or throws, also none
/// that the processes left behind.
class Supervisor {
 public:
  Supervisor(const JobPlan& plan, const SupervisorOptions& options, SignalQueue& signals,
             Guard& guard, RunReporter& reporter);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Throws kNotFound or kUnavailable when a process cannot be started.
  JobOutcome run();
  /// After run(): waits until all that was said has been read. A signal to stop ends that; after a
  /// stop on request or for time it lasts no longer than the grace.
  void hand_over_output();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::launch
