// Looking again is given up where it was in vain.
// SPDX-License-Identifier: Apache-2.0
#include "core/run_token.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(SpinningTest, AfterSpinningInVainTheNextWaitsDoNot) {
  SpinningHabit habit;
  EXPECT_TRUE(habit.worth_it());
  habit.learn(true);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(habit.worth_it()) << i;
  EXPECT_TRUE(habit.worth_it());
  habit.learn(true);  // again: three times as many
  for (int i = 0; i < 23; ++i) EXPECT_FALSE(habit.worth_it()) << i;
  EXPECT_TRUE(habit.worth_it());
  habit.learn(false);
  EXPECT_TRUE(habit.worth_it());
}

TEST(SpinningTest, TheHabitIsBounded) {
  SpinningHabit habit;
  for (int i = 0; i < 100; ++i) habit.learn(true);
  int skipped = 0;
  while (!habit.worth_it()) ++skipped;
  EXPECT_EQ(skipped, 511);
}

}  // namespace
}  // namespace tutti
