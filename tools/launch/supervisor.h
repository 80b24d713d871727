// Runs the processes of a job until they end, in a single loop on one thread, and reports the
// results.
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

/// Exit code of a program that stopped on request and saved a checkpoint.
inline constexpr int kStoppedOnRequest = 75;
/// Exit code of `tutti run` after --timeout, the same as that of timeout(1).
inline constexpr int kTimedOut = 124;

/// Reason for terminating the remaining processes.
enum class StopReason {
  kNone,       // no reason yet, or every process exited on its own
  kFinished,   // the chief and the workers have finished; parameter servers must be stopped
  kFailure,    // a process failed
  kSignal,     // the launcher received SIGINT, SIGTERM or SIGHUP
  kTaskAsked,  // a process exited with kStoppedOnRequest
  kTimeout,    // the time limit of the job expired
};

struct TaskOutcome {
  std::string task;  // "worker-0"
  int restarts = 0;
  ExitStatus status = {};  // status of the last process
  double seconds = 0;      // lifetime of the last process
  std::string oom = "";    // such as "cgroup oom_kill +1"; "" if the counter did not change
  int order = -1;          // index in the order in which processes ended; -1: has not ended
  /// Description of an early exit (code 0 while other processes waited), such as "before it
  /// joined", or "".
  std::string too_early = "";

  /// Returns "killed by signal 9 (SIGKILL), cgroup oom_kill +1 after 3.2 s".
  std::string describe() const;
};

struct JobOutcome {
  std::vector<TaskOutcome> tasks;    // by rank
  std::optional<int> first_failure;  // rank whose failure or early exit ended the job
  StopReason reason = StopReason::kNone;
  int stop_signal = 0;  // signal that the launcher sent to stop the job; 0: none

  int exit_code() const;
};

/// Counts the restarts of one task. Not thread-safe.
class RestartCount {
 public:
  explicit RestartCount(int limit) : limit_(limit) {}

  /// Records the failure of a process that ran for `lived`. If the task is to be restarted, counts
  /// a restart and returns nullopt; otherwise returns the reason, which is empty if the limit is 0.
  /// Refuses a restart after five consecutive processes that failed within a second and were not
  /// killed from outside.
  std::optional<std::string> refusal(const ExitStatus& status, Duration lived);
  int restarts() const { return restarts_; }

 private:
  int limit_;
  int restarts_ = 0;
  /// Number of consecutive processes that failed within a second of their start and were not killed
  /// from outside.
  int quick_failures_ = 0;
};

/// A process that the job has given up on because the process is stopped or disconnected.
struct AbandonedProcess {
  std::string task;  // "worker-0"
  int restarts = 0;  // identifies one of the task's successive processes
  /// True if the process is probably exiting. Its exit status is then the best report, so the
  /// process is killed only if it still exists a second later.
  bool is_ending = false;
  std::string why;
};

/// A task for which running processes wait.
struct AwaitedTask {
  std::string task;           // "worker-0"
  std::optional<int> joined;  // restart number of the task's most recent process to join the job
  bool may_repeat = false;    // true: restart the task even if parameter servers have its updates
};

/// A process of a task, identified by its number of restarts.
struct TaskProcess {
  std::string task;  // "worker-0"
  int restarts = 0;
};

struct SupervisorOptions {
  std::string log_dir = "";                        // folder for "worker-0.log" etc.; "": no files
  int max_restarts = 0;                            // limit per task
  Duration grace = std::chrono::seconds(30);       // time between SIGTERM and SIGKILL
  std::optional<Duration> timeout = std::nullopt;  // limit for the whole job
  /// If set, called several times a second. Returns the processes given up on since the last call.
  /// The processes that are still running are killed, which counts as a failure.
  std::function<std::vector<AbandonedProcess>()> find_given_up = {};
  /// If set, called when a process has failed. Returns all failed processes known to the job, with
  /// the original cause first; processes that failed as a result may have exited earlier.
  std::function<std::vector<TaskProcess>()> find_failed = {};
  /// If set, called as often as find_given_up. Returns the tasks for which running processes are
  /// waiting. If such a task joined and then exited with code 0, it is restarted if a running
  /// process was restarted (and so missed the last steps of the other tasks). Otherwise the task
  /// exited too early, which counts as a failure.
  std::function<std::vector<AwaitedTask>()> find_waited_for = {};
};

/// Starts the processes of a plan, forwards signals, and restarts failed processes after a short
/// pause as often as the options permit. Ends all processes when one fails and is not restarted.
/// When it returns or throws, no process remains, not even a descendant.
///
/// Writes each line as a whole to standard output or standard error, with the prefix "[worker-0]:
/// ". Names are colored on a terminal (unless NO_COLOR is set). The launcher's own messages begin
/// with "tutti run: " and go to standard error. A slow reader delays the processes only after 1 MiB
/// of unread output is buffered. At the end, supervise() waits until all output has been read, a
/// stop signal arrives, or the job's time limit expires. After a requested stop or a timeout,
/// supervise() waits for at most the grace period.
/// If the reader closes the pipe, this process receives SIGTERM.
///
/// Throws kNotFound or kResourceExhausted if a process cannot be started, and kUnavailable, naming
/// the file, if a log cannot be written.
JobOutcome supervise(const JobPlan& plan, const SupervisorOptions& options, SignalQueue& signals,
                     Guard& guard);

}  // namespace tutti::launch
