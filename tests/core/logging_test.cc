// Tests the log: levels, sinks, lines logged once; and spans as a Chrome trace.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/file.h"
#include "tests/support/thrown.h"
#include "tests/support/warnings.h"
#include "tutti/core/executor.h"
#include "tutti/core/json.h"
#include "tutti/core/trace.h"

namespace tutti::logging_test {

using Lines = std::vector<std::string>;

TEST(Logging, LinesBelowTheLevelAreDropped) {
  const thrown::LogLines collected;
  set_log_level(LogLevel::kWarning);
  log_info("quiet");
  log_warning("loud");
  set_log_level(LogLevel::kDebug);
  log_debug("detail");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(collected.list(), (Lines{"loud", "detail"}));
}

TEST(Logging, TheDefaultSinkIsStandardError) {
  const LogSink previous = set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();
  log_warning("100 % {braces}");
  const std::string text = ::testing::internal::GetCapturedStderr();
  set_log_sink(previous);
  EXPECT_NE(text.find("warning: 100 % {braces}\n"), std::string::npos) << text;
}

TEST(Logging, WarnsOncePerText) {
  const thrown::LogLines collected;
  EXPECT_TRUE(log_warning_once("only once, logging_test"));
  EXPECT_FALSE(log_warning_once("only once, logging_test"));
  EXPECT_TRUE(log_warning_once("another, logging_test"));
  EXPECT_EQ(collected.list().size(), 2u);
}

TEST(Logging, ASinkMayLogItself) {
  const LogSink previous = set_log_sink([](LogLevel, std::string_view) { log_warning("nested"); });
  ::testing::internal::CaptureStderr();
  log_info("outer");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("nested"), std::string::npos);
  set_log_sink(previous);
}

TEST(Logging, ManyThreadsLoseNoLine) {
  const thrown::LogLines collected;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < 4; ++t) {
      threads.push_back(Executor::system().start("logger", [] {
        for (int i = 0; i < 100; ++i) log_info("line");
      }));
    }
  }
  EXPECT_EQ(collected.list().size(), 400u);
}

class TraceTest : public ::testing::Test {
 protected:
  void TearDown() override {
    stop_trace();
    std::filesystem::remove(path_);
  }
  Json stopped() {
    stop_trace();
    return Json::parse(read_file(path_), path_);
  }
  static std::vector<Json> named(const Json& trace, std::string_view name) {
    std::vector<Json> found;
    for (const Json& event : trace.at("traceEvents").as_array()) {
      if (event.at("name").as_string() == name) found.push_back(event);
    }
    return found;
  }
  // Includes the process, because tests run concurrently.
  const std::string path_ = ::testing::TempDir() + "trace_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(TraceTest, SpansHaveTheirThreadTimesAndArguments) {
  start_trace(path_);
  {
    const TraceSpan outer("outer", "test", {{"replica", 3}, {"bucket", -1}});
    const TraceSpan inner("inner", "test");
  }
  trace_instant("moment", "test", "a \"label\"\n", {{"n", 7}});
  Executor::system().start("worker-1", [] { const TraceSpan span("elsewhere", "test"); })->join();
  const Json trace = stopped();
  const auto outer = named(trace, "outer"), inner = named(trace, "inner");
  ASSERT_EQ(outer.size(), 1U);
  ASSERT_EQ(inner.size(), 1U);
  EXPECT_EQ(outer[0].at("ph").as_string(), "X");
  EXPECT_EQ(outer[0].at("args").at("replica").as_int(), 3);
  EXPECT_EQ(outer[0].at("args").at("bucket").as_int(), -1);
  EXPECT_EQ(outer[0].at("tid"), inner[0].at("tid"));
  EXPECT_LE(outer[0].at("ts").as_double(), inner[0].at("ts").as_double());
  EXPECT_GE(outer[0].at("dur").as_double(), inner[0].at("dur").as_double());
  const auto moment = named(trace, "moment");
  ASSERT_EQ(moment.size(), 1U);
  EXPECT_EQ(moment[0].at("ph").as_string(), "i");
  EXPECT_EQ(moment[0].at("args").at("label").as_string(), "a \"label\"\n");
  EXPECT_EQ(moment[0].at("args").at("n").as_int(), 7);
  const auto elsewhere = named(trace, "elsewhere");
  ASSERT_EQ(elsewhere.size(), 1U);
  EXPECT_NE(elsewhere[0].at("tid"), outer[0].at("tid"));
  bool has_name = false;
  for (const Json& thread : named(trace, "thread_name")) {
    if (thread.at("tid") != elsewhere[0].at("tid")) continue;
    has_name = thread.at("args").at("name").as_string() == "worker-1";
  }
  EXPECT_TRUE(has_name);
}

TEST_F(TraceTest, NothingIsKeptWhileOff) {
  { const TraceSpan before("before", "test"); }
  trace_instant("before", "test");
  EXPECT_FALSE(trace_is_on());
  start_trace(path_);
  EXPECT_TRUE(trace_is_on());
  EXPECT_TRUE(named(stopped(), "before").empty());
  EXPECT_FALSE(trace_is_on());
  stop_trace();  // no trace is active
}

TEST_F(TraceTest, ASecondTraceAndAMissingPathAreRefused) {
  EXPECT_THROW(start_trace(""), Error);
  start_trace(path_);
  EXPECT_ERROR(start_trace("other.json"), kFailedPrecondition, path_);
}

TEST_F(TraceTest, ATaskOfAJobHasAFileAndAProcessNumberOfItsOwn) {
  const std::filesystem::path path = path_ + ".json";
  start_trace(path);
  { const TraceSpan span("step", "test"); }
  internal::set_trace_task("worker-3", 3);  // also if set after the path
  internal::set_trace_task("worker-3", 3);
  stop_trace();
  EXPECT_FALSE(std::filesystem::exists(path));
  const std::string own = path_ + ".worker-3.json";
  const Json trace = Json::parse(read_file(own), own);
  std::filesystem::remove(own);
  for (const Json& event : trace.at("traceEvents").as_array()) {
    EXPECT_EQ(event.at("pid").as_int(), 3);
  }
  EXPECT_EQ(named(trace, "process_name")[0].at("args").at("name").as_string(), "worker-3");
  internal::set_trace_task("worker-2", 2);  // workers that are threads share one file
  start_trace(path_);
  { const TraceSpan span("step", "test"); }
  EXPECT_EQ(named(stopped(), "step").size(), 1U);
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsAnError) {
  start_trace("/proc/no/such/trace.json");
  EXPECT_THROW(stop_trace(), Error);
  EXPECT_FALSE(trace_is_on());
}

}  // namespace tutti::logging_test
