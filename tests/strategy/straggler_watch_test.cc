// Tests which worker is reported as the straggler.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/straggler_watch.h"
#include "tests/support/scopes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tutti::internal {
namespace {

/// Runs a step of `length` milliseconds, in which each worker waits for the given milliseconds.
std::optional<Straggler> step_with(StragglerWatch& watch, Clock& clock,
                                   const std::vector<double>& milliseconds, int length = 10) {
  clock.sleep_for(std::chrono::milliseconds(length));
  std::vector<double> seconds;
  for (const double each : milliseconds) seconds.push_back(each / 1e3);
  return watch.note(seconds);
}

/// Returns the first of `count` steps that reports a straggler, and the report.
std::pair<int, std::optional<Straggler>> first_report(StragglerWatch& watch, Clock& clock,
                                                      const std::vector<double>& milliseconds,
                                                      int count) {
  for (int step = 1; step <= count; ++step) {
    if (const auto found = step_with(watch, clock, milliseconds)) return {step, found};
  }
  return {0, std::nullopt};
}

TEST(StragglerWatch, NamesASlowWorkerWithin20StepsWithItsShareOfTheWaiting) {
  test_scopes::StepClock clock;
  StragglerWatch watch({}, clock);
  EXPECT_EQ(first_report(watch, clock, {1.0, 1.0, 1.0}, 25).first, 0);  // balanced
  const auto [step, found] = first_report(watch, clock, {8.5, 8.5, 0.5}, 20);
  ASSERT_TRUE(found);
  EXPECT_LE(step, 20);
  EXPECT_EQ(found->worker, 2);
  EXPECT_NEAR(found->share, 0.8, 0.05);
  ASSERT_TRUE(watch.last());
  EXPECT_EQ(watch.last()->worker, 2);
}

TEST(StragglerWatch, WhatAllWaitIsNobodysFault) {
  test_scopes::StepClock clock;
  StragglerWatch watch({}, clock);
  EXPECT_EQ(first_report(watch, clock, {9.0, 9.0}, 50).first, 0);  // a slow network, no straggler
  EXPECT_EQ(first_report(watch, clock, {9.0}, 50).first, 0);       // a single worker
}

TEST(StragglerWatch, TheShareIsWhatTheOthersWaitBeyondTheSlowOne) {
  test_scopes::StepClock clock;
  StragglerWatch watch({}, clock);
  const auto [step, found] = first_report(watch, clock, {1.0, 9.0, 9.0, 8.0}, 30);
  ASSERT_TRUE(found);
  EXPECT_EQ(step, 16);  // the first step has no start time
  EXPECT_EQ(found->worker, 0);
  EXPECT_NEAR(found->share, ((9.0 + 9.0 + 8.0) / 3.0 - 1.0) / 10.0, 1e-9);
  EXPECT_NEAR(found->seconds_per_step, ((9.0 + 9.0 + 8.0) / 3.0 - 1.0) / 1e3, 1e-9);
}

TEST(StragglerWatch, SaysItAgainAfterSoManyStepsAndNotWhenSwitchedOff) {
  test_scopes::StepClock clock;
  StragglerWatch watch({.repeat_after_steps = 100}, clock);
  EXPECT_EQ(first_report(watch, clock, {8.0, 0.0}, 20).first, 16);
  EXPECT_EQ(first_report(watch, clock, {8.0, 0.0}, 99).first, 0);
  EXPECT_EQ(first_report(watch, clock, {8.0, 0.0}, 20).first, 6);  // 15 steps later, or a multiple
  StragglerWatch off({.share = 2.0}, clock);
  EXPECT_EQ(first_report(off, clock, {9.9, 0.0}, 50).first, 0);
}

TEST(StragglerWatch, WhoIsLateNowAndThenIsNotNamed) {
  test_scopes::StepClock clock;
  StragglerWatch watch({}, clock);
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(first_report(watch, clock, {9.0, 0.0}, 10).first, 0);  // say, a worker that saves
    EXPECT_EQ(first_report(watch, clock, {0.0, 9.0}, 5).first, 0);
  }
}

TEST(StragglerWatch, ShortWaitsAreNotWorthALine) {
  test_scopes::StepClock clock;
  StragglerWatch watch({}, clock);
  for (int step = 0; step < 50; ++step) {
    EXPECT_FALSE(step_with(watch, clock, {0.9, 0.0}, 1));
  }
}

TEST(StragglerWatch, CountsWhatLivesAsWaiting) {
  test_scopes::StepClock clock;
  StragglerWatch watch({}, clock);
  {
    const StragglerWatch::Waiting waiting(watch);
    clock.sleep_for(std::chrono::milliseconds(3));
  }
  clock.sleep_for(std::chrono::milliseconds(5));
  {
    const StragglerWatch::Waiting waiting(watch);
    clock.sleep_for(std::chrono::milliseconds(4));
  }
  EXPECT_NEAR(watch.take_wait(), 0.007, 1e-9);
  EXPECT_EQ(watch.take_wait(), 0.0);
}

TEST(StragglerWatch, TheLineNamesWorkerShareAndTime) {
  EXPECT_THAT(to_string(Straggler{2, 0.784, 0.041, 30}, "worker 2"),
              ::testing::StartsWith("worker 2 is slow: the others waited 78 % of the last 15 steps "
                                    "for it, 41.0 ms a step"));
}

}  // namespace
}  // namespace tutti::internal
