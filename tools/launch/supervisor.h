// Runs the processes of a job to their end: one loop in one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/guard.h"
#include "tools/launch/job_outcome.h"
#include "tools/launch/job_plan.h"
#include "tools/launch/restart_budget.h"
#include "tools/launch/signals.h"

namespace tutti::launch {

/// A process that the job goes on without, although it has not ended: it is stopped, or says
/// nothing.
struct GivenUp {
  std::string task;  // "worker-0"
  int restarts = 0;  // which of the task's processes
  std::string why;
};

struct SupervisorOptions {
  RestartLimits restarts = {};
  Duration grace = std::chrono::seconds(30);       // between SIGTERM and SIGKILL
  std::optional<Duration> timeout = std::nullopt;  // of the whole job
  /// Asked some times a second, if it is there, for those given up since the last time: they are
  /// killed, which is a failure like any other.
  std::function<std::vector<GivenUp>()> find_given_up = {};
  /// Asked likewise, for the tasks ("worker-0") that running processes wait for. One that has ended
  /// well is started again when a process waits that was started again itself: it comes too late to
  /// go through the last steps with the others.
  std::function<std::vector<std::string>()> find_waited_for = {};
};

/// Is told what happens. All calls come from Supervisor::run().
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void on_start(int rank, pid_t pid, int restarts) = 0;
  virtual void on_line(int rank, Stream stream, std::string_view line) = 0;
  /// A process has ended and is started again after `delay`.
  virtual void on_restart(int rank, const TaskOutcome& ended, Duration delay) = 0;
  /// The same for a process that had ended well, and that the process of `waiting` waits for.
  virtual void on_waited_for(int rank, int waiting) = 0;
  /// A process has ended for good.
  virtual void on_end(int rank, const TaskOutcome& ended) = 0;
  /// The failure that ends the job, before on_stop(). `why_final`: why the process is not started
  /// again, where that was asked for.
  virtual void on_first_failure(int rank, const TaskOutcome& ended,
                                const std::vector<std::string>& last_lines,
                                const std::string& why_final) = 0;
  /// Those of `ranks` get `signal_number` now, and SIGKILL after the grace.
  virtual void on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks) = 0;
  /// This one gets SIGKILL now.
  virtual void on_given_up(int rank, const std::string& why) = 0;
  /// Those of `ranks` get SIGKILL now.
  virtual void on_kill(const std::vector<int>& ranks) = 0;
  /// Whether lines may come; while they may not, the processes keep them in their pipes.
  virtual bool takes_lines() const { return true; }
  /// Descriptors that something could not be written to yet. write_more() tries again; it is called
  /// before each wait.
  virtual std::vector<int> waits_for_room() const { return {}; }
  virtual void write_more() {}
};

/// Starts the processes of a plan, passes signals on, starts failed ones again as the limits say,
/// and ends all when one fails for good. No process remains when run() returns or throws, also none
/// that the processes left behind.
class Supervisor {
 public:
  Supervisor(const JobPlan& plan, const SupervisorOptions& options, SignalQueue& signals,
             Guard& guard, JobListener& listener);
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
