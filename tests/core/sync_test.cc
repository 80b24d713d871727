// Tests threads, clocks, mutexes, condition variables, run tokens and stack traces.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/process_probe.h"
#include "core/run_token.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti::testing::sync_test {

using std::chrono::milliseconds;

TimePoint after(Duration duration) { return deadline_after(Clock::system().now(), duration); }

/// Runs `body(i)` for each i in [0, count), each on its own thread, and joins the threads.
void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::unique_ptr<Thread>> threads;
  for (int i = 0; i < count; ++i) {
    threads.push_back(Executor::system().start(concat("test-", i), [&body, i] { body(i); }));
  }
}

TEST(CondVarTest, WaitDoesNotTimeOutBeforeDeadline) {
  Mutex mutex;
  CondVar condition;
  MutexLock lock(mutex);
  const TimePoint begin = Clock::system().now();
  EXPECT_FALSE(condition.wait_for(mutex, milliseconds(30), [] { return false; }));
  EXPECT_GE(seconds_between(begin, Clock::system().now()), 0.030);
  EXPECT_FALSE(condition.wait_until(mutex, begin, [] { return false; }));
  EXPECT_TRUE(condition.wait_until(mutex, begin, [] { return true; }));
}

TEST(CondVarTest, InfiniteDeadlineWaitsUntilReady) {
  Mutex mutex;
  CondVar condition;
  bool ready = false;
  auto thread = Executor::system().start("notifier", [&] {
    Clock::system().sleep_for(milliseconds(10));
    MutexLock lock(mutex);
    ready = true;
    condition.notify_all();
  });
  MutexLock lock(mutex);
  EXPECT_TRUE(condition.wait_for(mutex, Duration::max(), [&] { return ready; }));
}

TEST(CondVarTest, ExceptionInPredicateKeepsMutexLocked) {
  for (bool with_token : {false, true}) {
    RunToken token;
    RunTokenHolder holder(with_token ? &token : nullptr);
    Mutex mutex;
    CondVar condition;
    {
      MutexLock lock(mutex);
      int calls = 0;
      EXPECT_THROW(condition.wait_for(mutex, milliseconds(20),
                                      [&]() -> bool {
                                        if (++calls == 2) throw std::runtime_error("not ready");
                                        return false;
                                      }),
                   std::runtime_error);
    }
    run_threads(1, [&](int) { MutexLock lock(mutex); });  // the mutex is free again
    EXPECT_EQ(BlockedScope::current_thread_holds_token(), with_token);
  }
}

TEST(CondVarTest, PingPongLosesNoWakeups) {
  Mutex mutex;
  CondVar condition;
  int turn = 0;
  run_threads(3, [&](int me) {
    for (int i = 0; i < 2000; ++i) {
      MutexLock lock(mutex);
      ASSERT_TRUE(
          condition.wait_for(mutex, std::chrono::seconds(60), [&] { return turn % 3 == me; }));
      ++turn;
      condition.notify_all();
    }
  });
  EXPECT_EQ(turn, 6000);
}

TEST(EventTest, SetWakesAllWaiters) {
  Event event;
  EXPECT_FALSE(event.is_set());
  EXPECT_FALSE(event.wait_until(after(milliseconds(5))));
  std::atomic<int> seen{0};
  {
    auto setter = Executor::system().start("setter", [&] {
      Clock::system().sleep_for(milliseconds(5));
      event.set();
    });
    run_threads(4, [&](int) { seen += event.wait_until(TimePoint::max()) ? 1 : 0; });
  }
  EXPECT_EQ(seen, 4);
  event.set();
  EXPECT_TRUE(event.is_set());
}

TEST(RunTokenTest, OnlyOneHolderRunsAtATime) {
  RunToken token;
  std::atomic<int> inside{0};
  int total = 0;  // guarded only by the token; ThreadSanitizer checks this
  run_threads(8, [&](int) {
    for (int i = 0; i < 200; ++i) {
      RunTokenHolder holder(&token);
      EXPECT_EQ(inside.fetch_add(1), 0);
      ++total;
      inside.fetch_sub(1);
    }
  });
  EXPECT_EQ(total, 1600);
}

TEST(RunTokenTest, GrantsTokenInRequestOrder) {
  RunToken token;
  std::vector<int> order;
  std::vector<std::unique_ptr<Thread>> threads;
  token.acquire();
  for (int i = 0; i < 5; ++i) {
    threads.push_back(Executor::system().start("asks", [&, i] {
      RunTokenHolder holder(&token);
      order.push_back(i);
    }));
    while (token.num_waiting() != static_cast<unsigned long>(i) + 1) {
      Clock::system().sleep_for(milliseconds(1));
    }
  }
  token.release();
  threads.clear();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(RunTokenTest, NestedHoldersOfSameTokenDoNotBlock) {
  RunToken token, other;
  EXPECT_FALSE(BlockedScope::current_thread_holds_token());
  {
    RunTokenHolder outer(&token);
    {
      RunTokenHolder inner(&token);
      RunTokenHolder nothing(nullptr);
      EXPECT_THROW(RunTokenHolder second(&other), Error);
    }
    EXPECT_TRUE(BlockedScope::current_thread_holds_token());
    {
      BlockedScope blocked;
      EXPECT_FALSE(BlockedScope::current_thread_holds_token());
      run_threads(1, [&](int) { RunTokenHolder taken(&token); });
    }
    EXPECT_TRUE(BlockedScope::current_thread_holds_token());
  }
  EXPECT_FALSE(BlockedScope::current_thread_holds_token());
  RunTokenHolder free_again(&token);
}

TEST(RunTokenTest, WaitingHolderYieldsToken) {
  RunToken token;
  Mutex mutex;
  CondVar condition;
  int arrived = 0;
  run_threads(6, [&](int) {  // a barrier of replicas that share one token
    RunTokenHolder holder(&token);
    MutexLock lock(mutex);
    ++arrived;
    condition.notify_all();
    EXPECT_TRUE(condition.wait_for(mutex, std::chrono::seconds(60), [&] { return arrived == 6; }));
  });
  EXPECT_EQ(arrived, 6);
}

TEST(RunTokenTest, SleepingAndJoiningReleaseToken) {
  RunToken token;
  RunTokenHolder holder(&token);
  std::atomic<bool> ran{false};
  auto thread = Executor::system().start("needs-token", [&] {
    RunTokenHolder inner(&token);
    ran = true;
  });
  // the other thread could not run if this thread kept the token
  while (!ran) Clock::system().sleep_for(milliseconds(1));
  EXPECT_TRUE(BlockedScope::current_thread_holds_token()) << "after a sleep";
  ran = false;
  Executor::system()
      .start("needs-token",
             [&] {
               RunTokenHolder inner(&token);
               ran = true;
             })
      ->join();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(BlockedScope::current_thread_holds_token()) << "after joining";
}

// Several threads share two tokens, one mutex and a bounded queue. Producers and consumers wait
// while holding a token and the mutex, acquired in an order that could deadlock.
TEST(RunTokenTest, ThreadsWithTwoTokensAndOneQueueDoNotDeadlock) {
  constexpr int kPairs = 6, kItems = 300;
  RunToken tokens[2];
  Mutex mutex;
  CondVar condition;
  int queued = 0, consumed = 0;
  run_threads(2 * kPairs, [&](int me) {
    RunTokenHolder holder(&tokens[me / 2 % 2]);
    for (int i = 0; i < kItems; ++i) {
      MutexLock lock(mutex);
      const bool produces = me % 2 == 0;
      ASSERT_TRUE(condition.wait_for(mutex, std::chrono::seconds(100),
                                     [&] { return produces ? queued < 2 : queued > 0; }));
      ASSERT_TRUE(produces ? queued < 2 : queued > 0);
      queued += produces ? 1 : -1;
      consumed += produces ? 0 : 1;
      condition.notify_all();
    }
  });
  EXPECT_EQ(consumed, kPairs * kItems);
  EXPECT_EQ(queued, 0);
}

TEST(HangWatchdogDeathTest, AbortsHangingTestAndPrintsThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    Event never;
    HangWatchdog watchdog("the test of the watchdog", std::chrono::seconds(1));
    auto stuck =
        Executor::system().start("stuck-thread", [&] { never.wait_until(TimePoint::max()); });
    stuck->join();
  };
  EXPECT_EXIT(hang(), ExitedWithCode(1),
              "HANG: the test of the watchdog: not finished after [0-9]+ "
              "s(.|\n)*stuck-thread(.|\n)*wait_until");
}

TEST(SpinningTest, FailedSpinSuppressesFollowingSpins) {
  SpinPredictor predictor;
  EXPECT_TRUE(predictor.should_spin());
  predictor.record(true);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(predictor.should_spin()) << i;
  EXPECT_TRUE(predictor.should_spin());
  predictor.record(true);  // after a second failure, 23 spins are suppressed
  for (int i = 0; i < 23; ++i) EXPECT_FALSE(predictor.should_spin()) << i;
  EXPECT_TRUE(predictor.should_spin());
  predictor.record(false);
  EXPECT_TRUE(predictor.should_spin());
}

TEST(SpinningTest, SuppressionIsBounded) {
  SpinPredictor predictor;
  for (int i = 0; i < 100; ++i) predictor.record(true);
  int skipped = 0;
  while (!predictor.should_spin()) ++skipped;
  EXPECT_EQ(skipped, 511);
}

TEST(ExecutorTest, ThreadNamesAreTruncatedTo15Characters) {
  char name[16] = "";
  Executor::system()
      .start("replica-12345678", [&] { pthread_getname_np(pthread_self(), name, sizeof(name)); })
      ->join();
  EXPECT_STREQ(name, "replica-1234567");
}

TEST(ExecutorTest, DestructorJoinsAndSecondJoinIsNoOp) {
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

TEST(ExecutorDeathTest, UncaughtExceptionEndsProcessAndNamesThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      Executor::system().start("bad-thread", [] { throw std::runtime_error("oops"); })->join(),
      "thread 'bad-thread': an exception escaped from its function: oops");
}

/// Prevents thread creation during its lifetime: the default stack size exceeds the address space.
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

TEST(ExecutorTest, ThreadStartFailureNamesLimitsToRaise) {
  const int before = num_running_threads();
  {
    const NoRoomForThreads limit;
    try {
      Executor::system().start("replica-3", [] {})->join();
      FAIL() << "a thread was started";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      EXPECT_EQ(error.message(),
                concat("thread 'replica-3': cannot be started in addition to ", before,
                       " threads of this process: Resource temporarily unavailable; raise the "
                       "limit on processes (ulimit -u, pids.max of the container) or on memory "
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

TEST(ClockTest, SleepNeverEndsEarlyAndDeadlinesDoNotOverflow) {
  const TimePoint begin = Clock::system().now();
  Clock::system().sleep_for(std::chrono::milliseconds(15));
  EXPECT_GE(seconds_between(begin, Clock::system().now()), 0.015);
  Clock::system().sleep_until(begin);  // in the past: returns immediately
  EXPECT_EQ(deadline_after(Clock::system().now(), Duration::max()), TimePoint::max());
  const TimePoint now = Clock::system().now();
  EXPECT_EQ(deadline_after(now, std::chrono::seconds(2)) - now, std::chrono::seconds(2));
}

TEST(ClockTest, WallTimeMatchesSystemClock) {
  // std::time() returns truncated seconds and lags by at most one tick.
  const std::time_t before = std::time(nullptr);
  const double now = wall_time_seconds();
  const std::time_t after = std::time(nullptr);
  EXPECT_GE(now, static_cast<double>(before));
  EXPECT_LT(now, static_cast<double>(after) + 2.0);
}

TEST(StackTraces, IncludeEveryNamedThread) {
  Event stop, sleeps;
  const auto waiting = Executor::system().start("waits-for-ever", [&] {
    sleeps.set();
    stop.wait_until(TimePoint::max());
  });
  sleeps.wait_until(TimePoint::max());
  for (int round = 0; round < 3; ++round) {
    const std::string text = stacks_of_all_threads();
    EXPECT_THAT(text, HasSubstr(" waits-for-ever\n    "));
    EXPECT_THAT(text, HasSubstr("IncludeEveryNamedThread"));  // name of this test's function
  }
  EXPECT_FALSE(stop.is_set());  // the interrupted wait continued
  stop.set();
}

TEST(StackTraces, ConcurrentRequestsSucceed) {
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

}  // namespace tutti::testing::sync_test
