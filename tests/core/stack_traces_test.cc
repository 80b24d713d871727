// Stacks of all threads: names, frames, and threads that come and go meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include "core/process_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace stack_traces_test {

using ::testing::HasSubstr;

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
  EXPECT_FALSE(stop.is_set());  // a wait that was interrupted went on
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

}  // namespace stack_traces_test
}  // namespace tutti
