// Tests MultiProcessRunner. Most cases correspond to tests of TensorFlow's MultiProcessRunner.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/multi_process_runner.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "tutti/core/error.h"

namespace tutti::multi_process_runner_test {
using testing::MultiProcessOptions;
using testing::MultiProcessResult;
using testing::MultiProcessRunner;

std::vector<std::string> texts(const std::vector<Json>& values) {
  std::vector<std::string> all;
  for (const Json& value : values) all.push_back(value.dump());
  return all;
}

/// Returns the code and message of the error that `function` throws.
template <class Function>
std::pair<ErrorCode, std::string> error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  return {ErrorCode::kOk, "nothing was thrown"};
}
using Thrown = std::pair<ErrorCode, std::string>;

/// Returns the results of all processes.
std::vector<std::string> results_of(const char* function, const MultiProcessOptions& options,
                                    const Json& arguments = Json::object()) {
  MultiProcessRunner runner(function, options, arguments);
  runner.start();
  return texts(runner.join().return_values);
}

TUTTI_PROCESS_FUNCTION(mpr_own_config) { return Json(std::getenv("TF_CONFIG")); }
TUTTI_PROCESS_FUNCTION(mpr_sum) {
  return Json(arguments.at("a").as_int() + arguments.at("b").as_int() +
              testing::this_process().index);
}

TEST(MultiProcessRunner, EachProcessHasOwnTfConfigAndReturnsValue) {
  MultiProcessRunner runner("mpr_own_config", {.num_workers = 2, .num_ps = 1, .num_chiefs = 1});
  runner.start();
  const MultiProcessResult& result = runner.join();
  ASSERT_EQ(result.return_values.size(), 4u);
  const std::vector<std::pair<std::string, int>> expected{
      {"chief", 0}, {"worker", 0}, {"worker", 1}, {"ps", 0}};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const Json config = Json::parse(result.return_values[rank].as_string());
    EXPECT_EQ(config.at("task").at("type").as_string(), expected[rank].first);
    EXPECT_EQ(config.at("task").at("index").as_int(), expected[rank].second);
    const Json& cluster = config.at("cluster");
    EXPECT_EQ(cluster.at("worker").as_array().at(1).as_string(), runner.address("worker", 1));
    EXPECT_EQ(cluster.at("chief").as_array().at(0).as_string(), runner.address("chief", 0));
    EXPECT_EQ(cluster.at("ps").as_array().at(0).as_string(), runner.address("ps", 0));
  }
}

TUTTI_PROCESS_FUNCTION(mpr_write) {
  std::cout << "This is an output line, and " << testing::this_process().name() << " wrote it\n"
            << "so is this, without an end";
  std::cerr << "an error of " << testing::this_process().name() << std::endl;
  return {};
}

TEST(MultiProcessRunner, OutputIsCapturedWithTaskPrefix) {
  MultiProcessRunner runner("mpr_write", {.num_workers = 2});
  runner.start();
  const MultiProcessResult& result = runner.join();
  for (const std::string name : {"worker-0", "worker-1"}) {
    const auto expect_once = [&](const std::string& line) {
      EXPECT_EQ(std::ranges::count(result.output, concat("[", name, "]: ", line)), 1) << line;
    };
    expect_once(concat("This is an output line, and ", name, " wrote it"));
    expect_once("so is this, without an end");
    expect_once("an error of " + name);
  }
  EXPECT_EQ(result.output.size(), 6u);
}

/// Runs ten iterations. The process named in "waits" waits halfway through until it is killed.
TUTTI_PROCESS_FUNCTION(mpr_iterate) {
  const launch::Task self = testing::this_process();
  for (int i = 0; i < 10; ++i) {
    std::cout << self.name() << ", iteration " << i << std::endl;
    const bool waits = arguments.at("waits").as_string() == self.name();
    if (i == 5 && waits && testing::num_restarts() == 0) {
      Clock::system().sleep_for(std::chrono::seconds(100));
    }
  }
  return {};
}

const Json kWorker0Waits = Json(Json::Object{{"waits", "worker-0"}});

TEST(MultiProcessRunner, TerminatedTaskCanBeRestarted) {
  for (const bool again : {false, true}) {
    MultiProcessRunner runner("mpr_iterate", {.num_workers = 2}, kWorker0Waits);
    runner.start();
    runner.wait_for_line("worker", 0, "iteration 5");
    EXPECT_TRUE(runner.process_exists("worker", 0));
    const pid_t first = runner.process_id("worker", 0);
    runner.terminate("worker", 0);
    EXPECT_FALSE(runner.process_exists("worker", 0));
    EXPECT_EQ(runner.exit_status("worker", 0).signal, SIGKILL);
    if (again) {
      runner.start_single_process("worker", 0);
      EXPECT_NE(runner.process_id("worker", 0), first);
    }
    const auto num_lines = [output = runner.join().output](const char* line) {
      return testing::num_lines(output, line);
    };
    EXPECT_EQ(num_lines("[worker-0]: worker-0, iteration 0"), again ? 2 : 1);
    EXPECT_EQ(num_lines("[worker-0]: worker-0, iteration 9"), again ? 1 : 0);
    EXPECT_EQ(num_lines("[worker-1]: worker-1, iteration 9"), 1);
  }
}

TUTTI_PROCESS_FUNCTION(mpr_meet) {
  const std::string own = testing::this_process().name();
  for (int round = 0; round < 3; ++round) {
    // In each round, a different process arrives last. Its file must exist once any process has
    // passed the barrier.
    const std::string file = concat(arguments.at("folder").as_string(), "/", round);
    if (testing::this_process().index == round) {
      Clock::system().sleep_for(std::chrono::milliseconds(30));
      std::filesystem::create_directory(file);
    }
    testing::process_barrier();
    if (!std::filesystem::exists(file)) return Json(concat(own, " passed too early"));
  }
  return {};
}

TEST(MultiProcessRunner, BarrierWaitsForAllProcesses) {
  const std::string folder = ::testing::TempDir() + "/tutti_mpr_meet";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_EQ(results_of("mpr_meet", {.num_workers = 3}, Json::Object{{"folder", folder}}),
            std::vector<std::string>{});
}

TEST(MultiProcessRunner, BarrierIsRefusedInMainProcess) {
  EXPECT_EQ(error_of([] { testing::process_barrier(); }),
            Thrown(ErrorCode::kFailedPrecondition,
                   "process_barrier: expected a process that a MultiProcessRunner started, got the "
                   "test itself"));
}

TUTTI_PROCESS_FUNCTION(mpr_wait_alone) {
  testing::process_barrier(std::chrono::milliseconds(50));
  return {};
}

TEST(MultiProcessRunner, BarrierTimeoutReportsNumberOfArrivals) {
  MultiProcessRunner runner("mpr_wait_alone", {.num_workers = 2});
  runner.start_single_process("worker", 1);
  EXPECT_EQ(error_of([&] { runner.join(); }),
            Thrown(ErrorCode::kDeadlineExceeded,
                   "worker-1: process_barrier: timed out after 1 of 2 processes arrived"));
}

TUTTI_PROCESS_FUNCTION(mpr_fail_first) {
  if (testing::this_process().index == 0) fail(ErrorCode::kDataLoss, "the file is torn");
  Clock::system().sleep_for(std::chrono::seconds(100));
  return {};
}

TEST(MultiProcessRunner, ProcessErrorTakesPrecedenceOverTimeout) {
  MultiProcessRunner runner("mpr_fail_first", {.num_workers = 2});
  runner.start();
  runner.wait_for_line("worker", 0, "error: the file is torn");
  EXPECT_EQ(error_of([&] { runner.join(std::chrono::milliseconds(200)); }),
            Thrown(ErrorCode::kDataLoss, "worker-0: the file is torn"));
  EXPECT_FALSE(runner.process_exists("worker", 1));
}

TEST(MultiProcessRunner, TimeoutNamesRunningProcessesAndKeepsOutput) {
  MultiProcessRunner runner("mpr_iterate", {.num_workers = 2}, kWorker0Waits);
  runner.start();
  runner.wait_for_line("worker", 0, "iteration 5");
  runner.wait_for_line("worker", 1, "iteration 9");
  EXPECT_EQ(error_of([&] { runner.join(std::chrono::milliseconds(300)); }),
            Thrown(ErrorCode::kDeadlineExceeded,
                   "MultiProcessRunner: timed out after 0.3 s; still running: worker-0 (last line: "
                   "worker-0, iteration 5)"));
  EXPECT_TRUE(testing::has_line(runner.result().output, "[worker-0]: worker-0, iteration 3"));
}

TUTTI_PROCESS_FUNCTION(mpr_end) {
  if (const Json* const signal = arguments.find("signal")) {
    ::signal(static_cast<int>(signal->as_int()), SIG_DFL);
    ::raise(static_cast<int>(signal->as_int()));
  }
  ::_exit(static_cast<int>(arguments.at("code").as_int()));
}

TEST(MultiProcessRunner, UnexpectedExitIsAnError) {
  const auto join_one = [](const char* arguments) {
    return error_of([&] { results_of("mpr_end", {}, Json::parse(arguments)); });
  };
  EXPECT_EQ(join_one(R"({"code": 3})"),
            Thrown(ErrorCode::kAborted, "worker-0: exited with code 3"));
  EXPECT_EQ(join_one(R"({"signal": 11})"),
            Thrown(ErrorCode::kAborted, "worker-0: killed by signal 11 (SIGSEGV)"));
  EXPECT_EQ(join_one(R"({"code": 0})").first, ErrorCode::kOk);
}

/// When all processes have arrived, the chief crashes or throws. Worker 0 notices this, but worker
/// 1 does not.
TUTTI_PROCESS_FUNCTION(mpr_lose_chief) {
  const launch::Task self = testing::this_process();
  std::cout << "here" << std::endl;
  testing::process_barrier();
  if (self.type == "chief" && arguments.find("throws")) fail(ErrorCode::kDataLoss, "a torn file");
  if (self.type == "chief") ::_exit(3);
  if (self.index == 0) fail(ErrorCode::kUnavailable, "the chief does not answer");
  Clock::system().sleep_for(std::chrono::seconds(1000));
  return {};
}

TEST(MultiProcessRunner, ChiefCrashEndsOtherProcesses) {
  MultiProcessRunner runner("mpr_lose_chief", {.num_workers = 2, .num_chiefs = 1});
  runner.start();
  const Thrown expected(
      ErrorCode::kAborted,
      "chief-0: exited with code 3; killed as a result: worker-1 (last line: here)");
  EXPECT_EQ(error_of([&] { runner.wait_for_line("worker", 1, "no such line"); }), expected);
  EXPECT_EQ(error_of([&] { runner.join(); }), expected);
  EXPECT_FALSE(runner.process_exists("worker", 1));
}

TEST(MultiProcessRunner, ChiefErrorTakesPrecedence) {
  const auto run = [] {
    results_of("mpr_lose_chief", {.num_workers = 2, .num_chiefs = 1},
               Json::Object{{"throws", true}});
  };
  EXPECT_EQ(error_of(run),
            Thrown(ErrorCode::kDataLoss,
                   "chief-0: a torn file; killed as a result: worker-1 (last line: here)"));
}

/// TensorFlow's runner also ends the remaining processes if the chief succeeds. This runner lets
/// them continue until join() returns or times out.
TUTTI_PROCESS_FUNCTION(mpr_outlive_chief) {
  testing::process_barrier();
  if (testing::this_process().type == "chief") return Json("done");
  std::cout << "going on" << std::endl;
  while (!std::filesystem::exists(arguments.at("file").as_string())) {
    Clock::system().sleep_for(std::chrono::milliseconds(10));
  }
  return Json("later");
}

TEST(MultiProcessRunner, WaitsForWorkersAfterChiefExits) {
  const std::string file = ::testing::TempDir() + "/tutti_mpr_outlive";
  std::filesystem::remove_all(file);
  MultiProcessRunner runner("mpr_outlive_chief", {.num_workers = 1, .num_chiefs = 1},
                            Json(Json::Object{{"file", file}}));
  runner.start();
  while (runner.process_exists("chief", 0)) Clock::system().sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(runner.process_exists("worker", 0));
  std::filesystem::create_directory(file);
  EXPECT_EQ(texts(runner.join().return_values),
            (std::vector<std::string>{"\"done\"", "\"later\""}));
}

TUTTI_PROCESS_FUNCTION(mpr_failing_assertion) {
  EXPECT_EQ(1 + 1, 3) << "wrong by one";
  if (arguments.find("ends")) ::_exit(7);
  if (arguments.find("waits")) std::cout << "it has failed" << std::endl;
  while (arguments.find("waits")) Clock::system().sleep_for(std::chrono::milliseconds(50));
  return Json(1);
}

TEST(MultiProcessRunner, FailedAssertionInProcessFailsTest) {
  const auto run = [](const char* argument) {
    Json arguments = Json::object();
    if (*argument) arguments.set(argument, true);
    MultiProcessRunner runner("mpr_failing_assertion", {.num_workers = 1}, arguments);
    runner.start();
    if (std::string(argument) == "waits") {
      runner.wait_for_line("worker", 0, "it has failed");
      return;  // the runner's destructor kills the process
    }
    error_of([&] { runner.join(); });
  };
  EXPECT_NONFATAL_FAILURE(run(""), "in worker-0: ");
  EXPECT_NONFATAL_FAILURE(run(""), "wrong by one");
  EXPECT_NONFATAL_FAILURE(run("ends"), "wrong by one");
  EXPECT_NONFATAL_FAILURE(run("waits"), "wrong by one");
}

TEST(MultiProcessRunner, TerminatedProcessIsNotAutoRestarted) {
  MultiProcessRunner runner("mpr_iterate", {.num_workers = 2, .auto_restart = true}, kWorker0Waits);
  runner.start();
  runner.wait_for_line("worker", 0, "iteration 5");
  runner.terminate_all();
  EXPECT_EQ(testing::num_lines(runner.join().output, "worker-0, iteration 0"), 1);
}

TEST(MultiProcessRunner, TaskMayRunDifferentFunction) {
  MultiProcessRunner runner("mpr_own_config", {.num_workers = 2});
  runner.start_single_process("worker", 0);
  runner.start_single_process("worker", 1, "mpr_sum", Json::parse(R"({"a": 1, "b": 2})"));
  EXPECT_EQ(error_of([&] { runner.start_single_process("worker", 1); }).first,
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(runner.join().return_values.at(1), Json(4));
  EXPECT_EQ(error_of([&] { runner.terminate("ps", 0); }).first, ErrorCode::kNotFound);
}

}  // namespace tutti::multi_process_runner_test
