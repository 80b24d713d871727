// What `tutti run` shows: the lines of the processes with their names, and what happens to them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/launch/supervisor.h"

namespace tutti::launch {

struct ReporterOptions {
  std::string log_dir = "";                   // with a file "worker-0.log" of each; empty: none
  bool output_to_error = false;               // standard output is needed for something else
  Duration grace = std::chrono::seconds(30);  // as the supervisor's, for messages
  int max_restarts = 0;
};

/// Writes to standard output and standard error: each line whole, after "[worker-0]: ". Names have
/// colours on a terminal (unless NO_COLOR is set). Messages of the launcher itself begin with
/// "tutti run: " and go to standard error. Nothing waits for who reads them: what is not read yet
/// is written by write_more(). When nobody reads any more, this process gets SIGTERM.
class RunReporter final : public JobListener {
 public:
  /// Makes the folder and the files of logs. Throws kUnavailable naming what cannot be made.
  RunReporter(const JobPlan& plan, ReporterOptions options);
  ~RunReporter() override;

  void on_start(int rank, pid_t pid, int restarts) override;
  void on_line(int rank, Stream stream, std::string_view line) override;
  void on_restart(int rank, const TaskOutcome& ended, Duration delay) override;
  void on_waited_for(int rank, int waiting) override;
  void on_end(int rank, const TaskOutcome& ended) override;
  void on_first_failure(int rank, const TaskOutcome& ended,
                        const std::vector<std::string>& last_lines,
                        const std::string& why_final) override;
  void on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks) override;
  void on_given_up(int rank, const std::string& why) override;
  void on_kill(const std::vector<int>& ranks) override;
  bool takes_lines() const override;
  std::vector<int> waits_for_room() const override;
  void write_more() override;

  /// The end of each task, when the job has not simply succeeded.
  void summarize(const JobOutcome& outcome);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::launch
