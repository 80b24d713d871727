// Waiting for memory of several ranks.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/process_wait.h"

#include <gtest/gtest.h>

#include "tutti/core/executor.h"

namespace tutti::internal {
namespace process_wait_test {

TimePoint in(std::chrono::milliseconds time) { return Clock::system().now() + time; }

class ProcessWaits : public ::testing::TestWithParam<SpinPolicy> {};
INSTANTIATE_TEST_SUITE_P(All, ProcessWaits,
                         ::testing::Values(SpinPolicy::kSpin, SpinPolicy::kYield),
                         [](const auto& of) {
                           return of.param == SpinPolicy::kSpin ? "Spin" : "Yield";
                         });

TEST_P(ProcessWaits, ReturnsAtOnceWhenReadyAndFalseAtTheDeadline) {
  WaitWord word;
  ProcessWait wait(&word, GetParam());
  EXPECT_TRUE(wait.wait_until(
      in(std::chrono::milliseconds(0)), [] { return true; }, [] {}));
  EXPECT_FALSE(wait.wait_until(
      in(std::chrono::milliseconds(5)), [] { return false; }, [] {}));
}

TEST_P(ProcessWaits, NoWakeUpIsLostWhetherItComesEarlyOrLate) {
  WaitWord word;
  ProcessWait wait(&word, GetParam());
  std::atomic<int> turn{0};
  constexpr int kRounds = 400;
  const auto play = [&](int own) {
    for (int i = own; i < kRounds; i += 2) {
      // Some answers come at once, some when the other has gone to sleep.
      if (i % 50 == 0) Clock::system().sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(wait.wait_until(
          in(std::chrono::milliseconds(20000)), [&] { return turn.load() == i; }, [] {}));
      turn.store(i + 1);
      wait.notify();
    }
  };
  const auto other = Executor::system().start("other", [&] { play(1); });
  play(0);
  other->join();
  EXPECT_EQ(turn.load(), kRounds);
}

}  // namespace process_wait_test
}  // namespace tutti::internal
