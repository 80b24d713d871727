// Output of a job: prefixed and colored lines of its processes, log files, and the launcher's
// messages.
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

/// Buffers text that does not fit into a pipe yet, so that a slow reader does not block this
/// process. Other processes should not write to the same pipe.
class BufferedPipeWriter {
 public:
  explicit BufferedPipeWriter(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  /// Adds text to the buffer; drops it if the reader has closed the pipe.
  void add(std::string_view text) {
    if (!is_gone_) text_ += text;
  }
  bool is_empty() const { return begin_ == text_.size(); }
  /// Returns true if the buffer is full; the caller should then stop adding text.
  bool is_full() const { return text_.size() - begin_ >= kFull; }

  /// Writes as much text as fits into the pipe; drops the text if the disk is full. Returns false
  /// after the reader has closed the pipe. The descriptor stays blocking, because it is shared with
  /// the parent process: a pipe that polls as writable accepts PIPE_BUF bytes without blocking.
  bool write_some();

 private:
  static constexpr std::size_t kFull = 1 << 20;

  int fd_;
  std::string text_;
  std::size_t begin_ = 0;  // start of the unwritten text
  bool is_gone_ = false;
};

/// Writes the lines of all processes, and messages about the processes. Does not wait for the
/// reader: write_more() writes the remaining text later.
class RunReporter {
 public:
  RunReporter(const JobPlan& plan, const SupervisorOptions& options);
  ~RunReporter() { write_more(); }
  RunReporter& operator=(RunReporter&&) = delete;

  void on_line(int rank, Stream stream, std::string_view line);
  /// Records the start of a task's process after `restarts` restarts.
  void on_start(int rank, int restarts);
  /// Reports that a process has ended and will be restarted.
  void on_restart(const TaskOutcome& ended);
  /// Reports that the process of rank `waiting` is waiting for the process of rank `rank`, which
  /// has already exited.
  void on_waited_for(int rank, int waiting);
  /// Reports the failure that ends the job; must be called before on_stop(). Repeats the process's
  /// last lines of output unless they are visible just above. `why_final`: the reason why the
  /// process is not restarted; empty if no restarts were requested.
  void on_first_failure(int rank, const TaskOutcome& ended,
                        const std::deque<std::string>& last_lines, const std::string& why_final);
  /// Reports that the processes of `ranks` are being sent `signal_number`, followed by SIGKILL
  /// after the grace period.
  void on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks);
  /// Reports that the job has given up on the process of `rank`; that process is being sent
  /// SIGKILL.
  void on_given_up(int rank, const std::string& why);
  /// Reports that the processes of `ranks` are being killed with SIGKILL.
  void on_kill(const std::vector<int>& ranks) { say(concat("killing ", names(ranks))); }
  /// Prints the result of each task, unless the whole job succeeded.
  void summarize(const JobOutcome& outcome);
  /// Returns true if the buffers have room for lines; otherwise output stays in the processes'
  /// pipes.
  bool takes_lines() const { return !output_.is_full() && !error_.is_full(); }
  /// Returns the descriptors for which text is still buffered.
  std::vector<int> waits_for_room() const;
  /// Writes more of the buffered text; must be called before each wait.
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
    std::size_t last_line = 0;  // index of the task's last line among the lines of all tasks
  };

  const Shown& at(int rank) const { return tasks_[static_cast<std::size_t>(rank)]; }
  /// Returns true if a process's last lines are recent enough that a terminal still shows them.
  bool are_visible(const Shown& shown) const;
  BufferedPipeWriter& writer(bool to_error) { return to_error && !is_one_file_ ? error_ : output_; }

  void open_log(Shown& shown);
  /// Writes text to stdout or stderr. Preserves the relative order of the two if both go to the
  /// same terminal or file.
  void write(bool to_error, std::string_view text);
  /// Writes as much text as fits into the pipe. If the reader has closed the pipe, ends the job by
  /// sending SIGTERM to this process, but only once.
  void flush(BufferedPipeWriter& writer);
  void say(const std::string& message) { write(true, concat("tutti run: ", message, "\n")); }

  std::string names(const std::vector<int>& ranks) const;

  const SupervisorOptions& options_;
  std::vector<Shown> tasks_;
  std::array<bool, 2> colors_{};  // for standard output and standard error
  const bool is_one_file_;        // stdout and stderr refer to the same terminal or file
  BufferedPipeWriter output_, error_;
  std::size_t num_lines_ = 0;  // number of lines, across all processes
  bool last_was_error_ = false, is_reader_gone_ = false;
};

}  // namespace tutti::launch
