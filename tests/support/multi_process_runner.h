// Runs a function of the test program in several processes, like tf's MultiProcessRunner.
// SPDX-License-Identifier: Apache-2.0
//
//     TUTTI_PROCESS_FUNCTION(own_index) { return Json(testing::this_process().index); }
//
//     TEST(Workers, KnowTheirIndex) {
//       testing::MultiProcessRunner runner("own_index", {.num_workers = 2});
//       runner.start();
//       EXPECT_EQ(runner.join().return_values, (std::vector<Json>{Json(0), Json(1)}));
//     }
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/process_function.h"
#include "tools/launch/child_process.h"

namespace tutti::testing {

struct MultiProcessOptions {
  int num_workers = 1;
  int num_ps = 0;
  int num_chiefs = 0;  // 0 or 1
  launch::Variables environment =
      {};                     // set in all processes, in addition to TF_CONFIG and TUTTI_RESTART
  bool stream_output = true;  // also copies process output to the test's standard output
  bool auto_restart = false;  // restarts failed processes any number of times
};

/// Results and output of the processes.
struct MultiProcessResult {
  std::vector<Json> return_values;  // values that functions returned, in rank order
  std::vector<std::string> output;  // "[worker-0]: line", in the order in which they were read
};

/// Returns true if a line of `output` contains `part`.
bool has_line(const std::vector<std::string>& output, std::string_view part);
/// Returns the number of lines of `output` that contain `part`.
int num_lines(const std::vector<std::string>& output, std::string_view part);

/// Processes of one cluster, each with its own TF_CONFIG. Output is read only while a function of
/// this object runs; otherwise a process blocks after writing 1 MiB. Use this object from one
/// thread, which must outlive the processes; they are killed when the test program ends or crashes.
/// If the chief fails and is not restarted, remaining processes are killed after 3 s (tf's
/// dependence_on_chief). A failed EXPECT_ or ASSERT_ in a process fails the test that started it.
class MultiProcessRunner {
 public:
  static constexpr Duration kTimeout = std::chrono::seconds(100);

  explicit MultiProcessRunner(std::string function, MultiProcessOptions options = {},
                              Json arguments = Json::object());
  /// Kills the processes that are still running.
  ~MultiProcessRunner();
  MultiProcessRunner(const MultiProcessRunner&) = delete;
  MultiProcessRunner& operator=(const MultiProcessRunner&) = delete;

  /// Starts all tasks.
  void start();
  /// Starts one task, for the first time or again after its process ended.
  void start_single_process(const std::string& type, int index);
  /// Same as start_single_process(type, index), but runs a different function.
  void start_single_process(const std::string& type, int index, std::string function,
                            Json arguments = Json::object());

  /// Waits until all started processes have ended, and returns their results. If a process's
  /// function threw an error, throws it with the task's name as prefix; throws kAborted if a
  /// process failed in another way. terminate() causes no error. The chief's error takes precedence
  /// and names processes that were killed because of it. Kills processes that are still running
  /// after `timeout`, and throws kDeadlineExceeded with their names. After an error, result() has
  /// the partial results.
  const MultiProcessResult& join(Duration timeout = kTimeout);
  const MultiProcessResult& result() const;

  /// Waits until the task prints a line that contains `part`, and returns that line. Throws
  /// kDeadlineExceeded on timeout, and kAborted if the process ends without such a line.
  std::string wait_for_line(const std::string& type, int index, std::string_view part,
                            Duration timeout = kTimeout);

  /// Kills the task (SIGKILL) and waits for it to exit; join() does not count this as a failure.
  void terminate(const std::string& type, int index);
  void terminate_all();
  /// Sends a signal such as SIGSTOP, SIGCONT or SIGTERM. A process killed by the signal counts as
  /// failed.
  void send(const std::string& type, int index, int signal_number);

  bool process_exists(const std::string& type, int index);
  pid_t process_id(const std::string& type, int index);
  /// Returns the status of a process that has exited. Throws kFailedPrecondition if it is still
  /// running.
  launch::ExitStatus exit_status(const std::string& type, int index);
  /// Returns the task's address in TF_CONFIG, such as "127.0.0.1:4711".
  std::string address(const std::string& type, int index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::testing
