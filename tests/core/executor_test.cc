// Threads: names, joining, what happens to exceptions; the clock.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/executor.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <ctime>
#include <stdexcept>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

TEST(ExecutorTest, ThreadsCarryTheirNameCutTo15Characters) {
  char name[16] = "";
  Executor::system()
      .start("replica-12345678", [&] { pthread_getname_np(pthread_self(), name, sizeof(name)); })
      ->join();
  EXPECT_STREQ(name, "replica-1234567");
}

TEST(ExecutorTest, DestructorJoins) {
  int value = 0;
  {
    auto thread = Executor::system().start("sets", [&] {
      Clock::system().sleep_for(std::chrono::milliseconds(20));
      value = 1;
    });
  }
  EXPECT_EQ(value, 1);
}

TEST(ExecutorTest, JoiningTwiceIsFine) {
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

/// While it lives no thread can be started: their stacks have no place in memory.
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

TEST(ClockTest, SleepsAtLeastAsLongAsAsked) {
  const TimePoint begin = Clock::system().now();
  Clock::system().sleep_for(std::chrono::milliseconds(15));
  EXPECT_GE(seconds_between(begin, Clock::system().now()), 0.015);
  Clock::system().sleep_until(begin);  // in the past: returns at once
}

TEST(ClockTest, DeadlinesDoNotOverflow) {
  EXPECT_EQ(deadline_after(Clock::system().now(), Duration::max()), TimePoint::max());
  const TimePoint now = Clock::system().now();
  EXPECT_EQ(deadline_after(now, std::chrono::seconds(2)) - now, std::chrono::seconds(2));
}

TEST(ClockTest, WallTimeIsThatOfTheSystem) {
  // Whole seconds, cut off, of a clock that lags by a tick at most.
  const std::time_t before = std::time(nullptr);
  const double now = wall_time_seconds();
  const std::time_t after = std::time(nullptr);
  EXPECT_GE(now, static_cast<double>(before));
  EXPECT_LT(now, static_cast<double>(after) + 2.0);
}

}  // namespace
}  // namespace tutti
