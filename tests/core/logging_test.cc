// The log: levels, sinks, and lines that come once.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/logging.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tutti/core/executor.h"

namespace tutti {
namespace {

/// Collects lines while it lives.
class CollectedLog {
 public:
  CollectedLog() {
    previous_ = set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~CollectedLog() {
    set_log_sink(previous_);
    set_log_level(LogLevel::kInfo);
  }
  std::vector<std::string> lines;

 private:
  LogSink previous_;
};

using Lines = std::vector<std::string>;

TEST(Logging, LinesBelowTheLevelAreDropped) {
  CollectedLog collected;
  set_log_level(LogLevel::kWarning);
  log_info("quiet");
  log_warning("loud");
  set_log_level(LogLevel::kDebug);
  log_debug("detail");
  EXPECT_EQ(collected.lines, (Lines{"loud", "detail"}));
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
  CollectedLog collected;
  EXPECT_TRUE(log_warning_once("only once, logging_test"));
  EXPECT_FALSE(log_warning_once("only once, logging_test"));
  EXPECT_TRUE(log_warning_once("another, logging_test"));
  EXPECT_EQ(collected.lines.size(), 2u);
}

TEST(Logging, ASinkMayLogItself) {
  const LogSink previous = set_log_sink([](LogLevel, std::string_view) { log_warning("nested"); });
  ::testing::internal::CaptureStderr();
  log_info("outer");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("nested"), std::string::npos);
  set_log_sink(previous);
}

TEST(Logging, ManyThreadsLoseNoLine) {
  CollectedLog collected;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < 4; ++t) {
      threads.push_back(Executor::system().start("logger", [] {
        for (int i = 0; i < 100; ++i) log_info("line");
      }));
    }
  }
  EXPECT_EQ(collected.lines.size(), 400u);
}

}  // namespace
}  // namespace tutti
