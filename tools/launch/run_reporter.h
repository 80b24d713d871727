// Output of a job: its processes' lines with names and colours, log files, the launcher's messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/supervisor.h"

namespace tutti::launch {

/// Keeps what the reader of a pipe does not take yet, so that a reader who is slow stops nothing
/// else. Other processes should not write into the same pipe.
class PatientWriter {
 public:
  explicit PatientWriter(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  /// Drops the text when the reader is gone.
  void add(std::string_view text) {
    if (!is_gone_) text_ += text;
  }
  bool is_empty() const { return begin_ == text_.size(); }
  /// Returns true if so much waits that no more should come.
  bool is_full() const { return text_.size() - begin_ >= kFull; }

  /// Writes what there is room for; nothing into a file on a full disk. Returns false once the
  /// reader is gone. The descriptor is shared with the process that gave it to us, so it stays one
  /// that blocks: a pipe that says it has room takes PIPE_BUF bytes without.
  bool write_some();

 private:
  static constexpr std::size_t kFull = 1 << 20;

  int fd_;
  std::string text_;
  std::size_t begin_ = 0;  // of what is not written yet
  bool is_gone_ = false;
};

/// Writes the lines of all processes, and messages about them. Nothing waits for the reader:
/// write_more() writes the rest later.
class RunReporter {
 public:
  RunReporter(const JobPlan& plan, const SupervisorOptions& options);
  ~RunReporter() { write_more(); }
  RunReporter& operator=(RunReporter&&) = delete;

  void on_line(int rank, Stream stream, std::string_view line);
  /// Process number `restarts` of a task has been started; 0 is its first.
  void on_start(int rank, int restarts);
  /// A process has ended and is started again.
  void on_restart(const TaskOutcome& ended);
  /// Reports a process that had ended well, and that the process of `waiting` waits for.
  void on_waited_for(int rank, int waiting);
  /// The failure that ends the job, before on_stop(). `why_final`: why the process is not started
  /// again, where that was asked for.
  void on_first_failure(int rank, const TaskOutcome& ended,
                        const std::deque<std::string>& last_lines, const std::string& why_final);
  /// Reports that the processes of `ranks` get `signal_number` now, and SIGKILL after the grace.
  void on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks);
  /// Reports that the process of `rank` gets SIGKILL now.
  void on_given_up(int rank, const std::string& why);
  /// Reports that the processes of `ranks` get SIGKILL now.
  void on_kill(const std::vector<int>& ranks) { say(concat("killing ", names(ranks))); }
  /// Shows the end of each task, when the job has not simply succeeded.
  void summarize(const JobOutcome& outcome);
  /// Returns true if lines may come; while they may not, the processes keep them in their pipes.
  bool takes_lines() const { return !output_.is_full() && !error_.is_full(); }
  /// Returns the descriptors that something could not be written to yet.
  std::vector<int> waits_for_room() const;
  /// Tries again; call it before each wait.
  void write_more() {
    flush(output_);
    flush(error_);
  }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct Shown {
    std::string name, plain_prefix, color_prefix, log_path;
    std::unique_ptr<std::FILE, CloseFile> log;
  };

  const Shown& at(int rank) const { return tasks_[static_cast<std::size_t>(rank)]; }
  PatientWriter& writer(bool to_error) { return to_error && !is_one_file_ ? error_ : output_; }

  void open_log(Shown& shown);
  /// Lines of both reach a terminal, or one file, in their order.
  void write(bool to_error, std::string_view text);
  /// Without a reader the job is asked to stop, once.
  void flush(PatientWriter& writer);
  void say(const std::string& message) { write(true, concat("tutti run: ", message, "\n")); }

  std::string names(const std::vector<int>& ranks) const;

  const SupervisorOptions& options_;
  std::vector<Shown> tasks_;
  std::array<bool, 2> colors_{};  // of output and error
  const bool is_one_file_;        // a terminal, or one file for both
  PatientWriter output_, error_;
  bool last_was_error_ = false, is_reader_gone_ = false;
};

}  // namespace tutti::launch
