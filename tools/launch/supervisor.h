// Runs the processes of a job to their end, one loop in one thread; what came of them, and what is
// shown.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

/// Keeps what the reader of a pipe does not take yet, so that a reader who is slow stops nothing
/// else. Other processes should not write into the same pipe.
class PatientWriter {
 public:
  explicit PatientWriter(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  /// Dropped when the reader is gone.
  void add(std::string_view text);
  /// Writes what there is room for; into a file on a full disk: nothing. False once nobody reads
  /// any more.
  bool write_some();
  bool is_empty() const { return begin_ == text_.size(); }
  /// Whether so much waits that no more should come.
  bool is_full() const { return text_.size() - begin_ >= kFull; }

 private:
  static constexpr std::size_t kFull = 1 << 20;

  void drop_written();

  int fd_;
  std::string text_;
  std::size_t begin_ = 0;  // of what is not written yet
  bool is_gone_ = false;
};

struct ReporterOptions {
  std::string log_dir = "";                   // with a file "worker-0.log" of each; empty: none
  Duration grace = std::chrono::seconds(30);  // as the supervisor's, for messages
  int max_restarts = 0;
};

/// Writes to standard output and standard error: each line whole, after "[worker-0]: ". Names have
/// colours on a terminal (unless NO_COLOR is set). Messages of the launcher itself begin with
/// "tutti run: " and go to standard error. Nothing waits for the reader: what is not read yet is
/// written by write_more(). When nobody reads any more, this process gets SIGTERM.
class RunReporter {
 public:
  /// Makes the folder and the files of logs. Throws kUnavailable naming what cannot be made.
  RunReporter(const JobPlan& plan, ReporterOptions options);
  ~RunReporter();
  RunReporter(const RunReporter&) = delete;
  RunReporter& operator=(const RunReporter&) = delete;

  void on_line(int rank, Stream stream, std::string_view line);
  /// Process number `restarts` of a task has been started; 0 is its first.
  void on_start(int rank, int restarts);
  /// A process has ended and is started again.
  void on_restart(const TaskOutcome& ended);
  /// The same for a process that had ended well, and that the process of `waiting` waits for.
  void on_waited_for(int rank, int waiting);
  /// The failure that ends the job, before on_stop(). `why_final`: why the process is not started
  /// again, where that was asked for.
  void on_first_failure(int rank, const TaskOutcome& ended,
                        const std::vector<std::string>& last_lines, const std::string& why_final);
  /// Those of `ranks` get `signal_number` now, and SIGKILL after the grace.
  void on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks);
  /// This one gets SIGKILL now.
  void on_given_up(int rank, const std::string& why);
  /// Those of `ranks` get SIGKILL now.
  void on_kill(const std::vector<int>& ranks);
  /// The end of each task, when the job has not simply succeeded.
  void summarize(const JobOutcome& outcome);

  /// Whether lines may come; while they may not, the processes keep them in their pipes.
  bool takes_lines() const { return !output_.is_full() && !error_.is_full(); }
  /// Descriptors that something could not be written to yet.
  std::vector<int> waits_for_room() const;
  /// Tries again; call it before each wait.
  void write_more();

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct Shown {
    std::string name, plain_prefix, color_prefix, log_path;
    std::unique_ptr<std::FILE, CloseFile> log;
  };

  const Shown& at(int rank) const { return tasks_[static_cast<std::size_t>(rank)]; }
  void open_log(Shown& shown);
  PatientWriter& writer(bool to_error) { return to_error && !is_one_file_ ? error_ : output_; }
  void write(bool to_error, std::string_view text);
  void flush(PatientWriter& writer);
  void say(const std::string& message);
  std::string names(const std::vector<int>& ranks) const;

  const ReporterOptions options_;
  std::vector<Shown> tasks_;
  std::array<bool, 2> colors_{};  // of output and error
  const bool is_one_file_;        // a terminal, or one file for both
  PatientWriter output_, error_;
  bool last_was_error_ = false, is_reader_gone_ = false;
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
};

/// A task's process after so many restarts.
struct TaskProcess {
  std::string task;  // "worker-0"
  int restarts = 0;
};

struct SupervisorOptions {
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
/// as often as the options say, and ends all when one fails for good. No process remains when run()
/// returns or throws, also none that the processes left behind.
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
