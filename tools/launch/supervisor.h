// Runs the processes of a job to their end, one loop in one thread; what came of them, and what is
// shown.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/child_process.h"
#include "tools/launch/job_plan.h"
#include "tutti/core/clock.h"

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
  int restarts = 0;
  ExitStatus status = {};  // of the last process
  double seconds = 0;      // that it lived
  std::string oom = "";    // what the kernel's counter said at its end
  int order = -1;          // 0 ended first; -1: has not
  /// "before it joined" for a process that others waited for after it exited with code 0.
  std::string too_early = "";

  /// "killed by signal 9 (SIGKILL), cgroup oom_kill +1, after 3.2 s".
  std::string describe() const;
};

struct JobOutcome {
  std::vector<TaskOutcome> tasks;    // by rank
  std::optional<int> first_failure;  // the rank whose failure, or early end, ended the job
  StopReason reason = StopReason::kNone;
  int stop_signal = 0;  // that the launcher sent to stop the job; 0: none

  int exit_code() const;
};

/// Counts the restarts of one task. Not thread-safe.
class RestartCount {
 public:
  explicit RestartCount(int limit) : limit_(limit) {}

  /// Counts a failed process that lived for `lived`. Returns nothing if the task is to be started
  /// again, which counts as a restart; otherwise the reason, which is empty if the limit is 0. The
  /// fifth process in a row that ends within a second, without a kill from outside, is the last.
  std::optional<std::string> refusal(const ExitStatus& status, Duration lived);
  int restarts() const { return restarts_; }

 private:
  int limit_;
  int restarts_ = 0;
  int quick_failures_ = 0;  // in a row
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
  bool may_repeat = false;    // also where parameter servers have its updates
};

/// A task's process after so many restarts.
struct TaskProcess {
  std::string task;  // "worker-0"
  int restarts = 0;
};

struct SupervisorOptions {
  std::string log_dir = "";                        // gets a file "worker-0.log" of each; "": none
  int max_restarts = 0;                            // of each task
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

/// Starts the processes of a plan, passes signals on, starts failed ones again after a short pause,
/// as often as the options say, and ends all when one fails for good. No process remains when it
/// returns or throws, also none that the processes left behind.
///
/// Writes to standard output and standard error: each line whole, after "[worker-0]: ". Names have
/// colours on a terminal (unless NO_COLOR is set). Messages of the launcher itself begin with
/// "tutti run: " and go to standard error. No process waits for the reader. When the job has ended,
/// waits until all has been read: a signal to stop ends that, and after a stop on request or for
/// time it lasts no longer than the grace. If the reader is gone, this process gets SIGTERM.
///
/// Throws kNotFound or kUnavailable when a process cannot be started, kUnavailable naming a log
/// that cannot be written.
JobOutcome supervise(const JobPlan& plan, const SupervisorOptions& options, SignalQueue& signals,
                     Guard& guard);

}  // namespace tutti::launch
