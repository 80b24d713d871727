// The coordinator's watchdog.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/hang_watchdog.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace watchdog_test {

using testing::HangWatchdog;
using namespace std::chrono_literals;

/// Keeps what is logged while it lives.
class KeptLog {
 public:
  KeptLog()
      : previous_(set_log_sink([this](LogLevel, std::string_view line) {
          MutexLock lock(mutex_);
          text_ += line;
        })) {}
  ~KeptLog() { set_log_sink(previous_); }
  std::string text() {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  std::string text_ TUTTI_GUARDED_BY(mutex_);
  LogSink previous_;
};

TEST(CoordinatorWatchdog, StartsNoThreadWithoutTimeout) {
  for (const Duration timeout : {Duration(0s), Duration(-1s)}) {
    WatchdogOptions options;
    options.timeout = timeout;
    EXPECT_FALSE(Watchdog(options, [] { return 0; }).has_thread());
  }
}

TEST(CoordinatorWatchdog, WritesAllStacksOnceAndRestartsTheTimer) {
  HangWatchdog hang("the coordinator's watchdog");
  KeptLog log;
  Event stop, twice;
  const auto stuck =
      Executor::system().start("stuck-worker", [&] { stop.wait_until(TimePoint::max()); });
  std::vector<TimePoint> times;
  WatchdogOptions options;
  options.timeout = 60ms;
  options.describe = [] { return std::string("closure 7 on worker 1"); };
  options.on_timeout = [&] {
    times.push_back(Clock::system().now());
    if (times.size() == 2) twice.set();
  };
  {
    const Watchdog watchdog(options, [] { return 5; });
    EXPECT_TRUE(watchdog.has_thread());
    EXPECT_TRUE(twice.wait_until(deadline_after(Clock::system().now(), 60s)));
  }
  stop.set();
  EXPECT_GE(times[1] - times[0], 60ms);
  const std::string text = log.text();
  EXPECT_THAT(text, ::testing::HasSubstr("no closure finished for"));
  EXPECT_THAT(text, ::testing::HasSubstr("closure 7 on worker 1"));
  EXPECT_THAT(text, ::testing::HasSubstr("stuck-worker\n    "));  // with a frame below
  EXPECT_THAT(text, ::testing::HasSubstr("ps-watchdog\n    "));
}

TEST(CoordinatorWatchdog, FinishedClosureResetsTheTimer) {
  HangWatchdog hang("the coordinator's watchdog");
  KeptLog log;
  std::atomic<std::uint64_t> finished{0};
  std::atomic<int> num_alarms{0};
  WatchdogOptions options;
  options.timeout = 10s;
  options.on_timeout = [&] { ++num_alarms; };
  WatchdogOptions quick = options;
  quick.timeout = 40ms;
  {
    // Each look sees another count.
    const Watchdog watchdog(quick, [&] { return finished.fetch_add(1); });
    while (finished < 5) Clock::system().sleep_for(5ms);
  }
  EXPECT_EQ(num_alarms, 0);
}

}  // namespace watchdog_test
}  // namespace tutti
