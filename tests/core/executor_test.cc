// Tests threads (names, joining, exceptions, stacks of all threads) and the clock.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <ctime>
#include <stdexcept>
#include <vector>

#include "core/process_probe.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::executor_test {
using ::testing::HasSubstr;

TEST(ExecutorTest, ThreadsCarryTheirNameCutTo15Characters) {
  char name[16] = "";
  Executor::system()
      .start("replica-12345678", [&] { pthread_getname_np(pthread_self(), name, sizeof(name)); })
      ->join();
  EXPECT_STREQ(name, "replica-1234567");
}

TEST(ExecutorTest, DestructorJoinsAndJoiningTwiceIsFine) {
  int value = 0;
  {
    auto thread = Executor::system().start("sets", [&] {
      Clock::system().sleep_for(std::chrono::milliseconds(20));
      value = 1;
    });
  }
  EXPECT_EQ(value, 1);
  int runs = 0;
  auto thread = Executor::system().start("short", [&] { ++runs; });
  thread->join();
  thread->join();
  EXPECT_EQ(runs, 1);
}

TEST(ExecutorDeathTest, AnExceptionThatLeavesTheBodyEndsTheProcessAndNamesTheThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      Executor::system().start("bad-thread", [] { throw std::runtime_error("oops"); })->join(),
      "thread 'bad-thread': an exception left its body: oops");
}

/// Prevents thread creation for its lifetime, by leaving no address space for stacks.
class NoRoomForThreads {
 public:
  NoRoomForThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 47);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  ~NoRoomForThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoRoomForThreads(const NoRoomForThreads&) = delete;
  NoRoomForThreads& operator=(const NoRoomForThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(ExecutorTest, ThreadThatCannotBeStartedIsAnErrorWithTheLimitsToRaise) {
  const int before = num_running_threads();
  {
    const NoRoomForThreads limit;
    try {
      Executor::system().start("replica-3", [] {})->join();
      FAIL() << "a thread was started";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      EXPECT_EQ(error.message(),
                concat("thread 'replica-3': expected to start it beside ", before,
                       " others of this process, got: Resource temporarily unavailable; raise the "
                       "limit of processes (ulimit -u, pids.max of the container) or of memory "
                       "(ulimit -v), or use fewer replicas, processes or data threads"));
    }
  }
  EXPECT_EQ(num_running_threads(), before);
  int runs = 0;
  Executor::system().start("later", [&] { ++runs; })->join();
  EXPECT_EQ(runs, 1);
}

TEST(ExecutorTest, CountsThreads) {
  EXPECT_GE(num_hardware_threads(), 1);
  const int before = num_running_threads();
  int inside = 0;
  Executor::system().start("counts", [&] { inside = num_running_threads(); })->join();
  EXPECT_EQ(inside, before + 1);
  EXPECT_EQ(num_running_threads(), before);
}

TEST(ClockTest, SleepsAtLeastAsLongAsAskedAndDeadlinesDoNotOverflow) {
  const TimePoint begin = Clock::system().now();
  Clock::system().sleep_for(std::chrono::milliseconds(15));
  EXPECT_GE(seconds_between(begin, Clock::system().now()), 0.015);
  Clock::system().sleep_until(begin);  // in the past: returns at once
  EXPECT_EQ(deadline_after(Clock::system().now(), Duration::max()), TimePoint::max());
  const TimePoint now = Clock::system().now();
  EXPECT_EQ(deadline_after(now, std::chrono::seconds(2)) - now, std::chrono::seconds(2));
}

TEST(ClockTest, WallTimeIsThatOfTheSystem) {
  // Compares with a clock of whole seconds, truncated, that lags by at most a tick.
  const std::time_t before = std::time(nullptr);
  const double now = wall_time_seconds();
  const std::time_t after = std::time(nullptr);
  EXPECT_GE(now, static_cast<double>(before));
  EXPECT_LT(now, static_cast<double>(after) + 2.0);
}

TEST(StackTraces, EveryThreadIsNamedAndShown) {
  Event stop, sleeps;
  const auto waiting = Executor::system().start("waits-for-ever", [&] {
    sleeps.set();
    stop.wait_until(TimePoint::max());
  });
  sleeps.wait_until(TimePoint::max());
  for (int round = 0; round < 3; ++round) {
    const std::string text = stacks_of_all_threads();
    EXPECT_THAT(text, HasSubstr(" waits-for-ever\n    "));
    EXPECT_THAT(text, HasSubstr("EveryThreadIsNamedAndShown"));  // this function
  }
  EXPECT_FALSE(stop.is_set());  // the interrupted wait was resumed
  stop.set();
}

TEST(StackTraces, TwoThreadsMayAskAtOnce) {
  std::atomic<int> num_good{0};
  std::vector<std::unique_ptr<Thread>> threads;
  for (int i = 0; i < 2; ++i) {
    threads.push_back(Executor::system().start("asks", [&num_good] {
      for (int round = 0; round < 5; ++round) {
        if (stacks_of_all_threads().find("asks\n    ") != std::string::npos) ++num_good;
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(num_good, 10);
}

}  // namespace tutti::executor_test
