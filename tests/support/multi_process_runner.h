// Runs a function of the test program in several processes: tf's MultiProcessRunner.
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
  int num_chiefs = 0;                  // 0 or 1
  launch::Variables environment = {};  // of all processes, beside TF_CONFIG and TUTTI_RESTART
  bool stream_output = true;           // their lines are written to the test's standard output, too
  bool auto_restart = false;           // a process that fails is started again, as often as needed
};

/// What the processes left.
struct MultiProcessResult {
  std::vector<Json> return_values;  // of those that returned something, in order of their ranks
  std::vector<std::string> output;  // "[worker-0]: line", in the order in which they were read
};

/// Whether a line of `output` contains `part`.
bool has_line(const std::vector<std::string>& output, std::string_view part);
/// How many lines of `output` contain `part`.
int num_lines(const std::vector<std::string>& output, std::string_view part);

/// The processes of one cluster, each with a TF_CONFIG of its own. Lines are read while a function
/// of this object runs; until then a process may write 1 MiB before it waits. Threads: one, which
/// must outlive the processes. When the test program ends, however it does, they end. When the
/// chief fails and is not started again, those that go on without it are killed after 3 s (tf's
/// dependence_on_chief). An EXPECT_ or ASSERT_ that fails in a process makes the test fail that
/// started it.
class MultiProcessRunner {
 public:
  static constexpr Duration kTimeout = std::chrono::seconds(100);

  explicit MultiProcessRunner(std::string function, MultiProcessOptions options = {},
                              Json arguments = Json::object());
  /// Kills those that still run.
  ~MultiProcessRunner();
  MultiProcessRunner(const MultiProcessRunner&) = delete;
  MultiProcessRunner& operator=(const MultiProcessRunner&) = delete;

  /// Starts every task.
  void start();
  /// Starts one task, for the first time or again after its end.
  void start_single_process(const std::string& type, int index);
  /// The same with another function.
  void start_single_process(const std::string& type, int index, std::string function,
                            Json arguments = Json::object());

  /// Waits until all started processes have ended. Throws what the function of one threw, with the
  /// task's name in front; kAborted when one ended otherwise without terminate(); of several what
  /// the chief did, naming those that were killed because of it; kDeadlineExceeded naming those
  /// that run (and kills them). After a throw, result() has what there is.
  const MultiProcessResult& join(Duration timeout = kTimeout);
  const MultiProcessResult& result() const;

  /// Waits until a line of that task contains `part`; gives the line. Throws kDeadlineExceeded, or
  /// kAborted when the process has ended without it.
  std::string wait_for_line(const std::string& type, int index, std::string_view part,
                            Duration timeout = kTimeout);

  /// Kills (SIGKILL) and waits for the end; join() does not count that as a failure.
  void terminate(const std::string& type, int index);
  void terminate_all();
  /// SIGSTOP, SIGCONT, SIGTERM and so on. A process that dies of it has failed.
  void send(const std::string& type, int index, int signal_number);

  bool process_exists(const std::string& type, int index);
  pid_t process_id(const std::string& type, int index);
  /// Throws kFailedPrecondition while it runs.
  launch::ExitStatus exit_status(const std::string& type, int index);
  /// "127.0.0.1:4711", as in TF_CONFIG.
  std::string address(const std::string& type, int index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::testing
