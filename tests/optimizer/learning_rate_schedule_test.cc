// Learning rates by iteration.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/learning_rate_schedules.h"

#include <cmath>
#include <limits>

#include "tests/optimizer/optimizer_helpers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

TEST(LearningRateScheduleTest, ExponentialDecayIsSmooth) {
  const ExponentialDecay decay(
      {.initial_learning_rate = 0.1, .decay_steps = 100, .decay_rate = 0.96});
  EXPECT_DOUBLE_EQ(decay(0), 0.1);
  EXPECT_DOUBLE_EQ(decay(50), 0.1 * std::sqrt(0.96));
  EXPECT_DOUBLE_EQ(decay(100), 0.096);
  EXPECT_DOUBLE_EQ(decay(200), 0.1 * 0.96 * 0.96);
}

TEST(LearningRateScheduleTest, StaircaseDecaysInJumps) {
  const ExponentialDecay decay(
      {.initial_learning_rate = 1.0, .decay_steps = 10, .decay_rate = 0.5, .staircase = true});
  EXPECT_EQ(decay(0), 1.0);
  EXPECT_EQ(decay(9), 1.0);
  EXPECT_EQ(decay(10), 0.5);
  EXPECT_EQ(decay(19), 0.5);
  EXPECT_EQ(decay(20), 0.25);
}

TEST(LearningRateScheduleTest, PiecewiseIncludesTheBoundary) {
  const PiecewiseConstantDecay decay({100, 110}, {1.0, 0.5, 0.1});  // Keras's documented example
  EXPECT_EQ(decay(0), 1.0);
  EXPECT_EQ(decay(100), 1.0);
  EXPECT_EQ(decay(101), 0.5);
  EXPECT_EQ(decay(110), 0.5);
  EXPECT_EQ(decay(111), 0.1);
  EXPECT_EQ(PiecewiseConstantDecay({}, {0.3})(5), 0.3);
}

TEST(LearningRateScheduleTest, RefusesWhatIsNoSchedule) {
  expect_error(kInvalid, {"PiecewiseConstantDecay", "[1, 2]", "2 values"}, [] {
    PiecewiseConstantDecay({1, 2}, {0.1, 0.2});
  });
  expect_error(kInvalid, {"ascending", "[2, 2]"}, [] {
    PiecewiseConstantDecay({2, 2}, {0.1, 0.2, 0.3});
  });
  expect_error(kInvalid, {"ExponentialDecay", "decay_steps", "0"},
               [] { ExponentialDecay({.decay_steps = 0}); });
  expect_error(kInvalid, {"decay_rate"}, [] { ExponentialDecay({.decay_rate = 0.0}); });
}

TEST(LearningRateScheduleTest, TheOptimizerAsksForEachIteration) {
  Sgd optimizer(std::vector{variable(doubles({0.0}), "w")},
                {.learning_rate = PiecewiseConstantDecay({0, 1}, {1.0, 0.1, 0.01})});
  EXPECT_EQ(optimizer.learning_rate(), 1.0);
  const std::vector<std::vector<double>> one = {{1.0}};
  EXPECT_DOUBLE_EQ(weights_after(optimizer, one)[0], -1.0);
  EXPECT_EQ(optimizer.learning_rate(), 0.1);
  EXPECT_DOUBLE_EQ(weights_after(optimizer, one)[0], -1.1);
  EXPECT_DOUBLE_EQ(weights_after(optimizer, one)[0], -1.11);
  expect_error(ErrorCode::kFailedPrecondition, {"sgd.set_learning_rate", "schedule"},
               [&] { optimizer.set_learning_rate(0.5); });
}

TEST(LearningRateScheduleTest, RatesThatAreNegativeOrNotFiniteAreRefused) {
  const std::vector variables{variable(doubles({1.0}), "w")};
  const std::vector<double> wrong = {-0.1, std::numeric_limits<double>::quiet_NaN(),
                                     std::numeric_limits<double>::infinity()};
  Sgd optimizer(variables, 0.5);
  for (const double rate : wrong) {
    expect_error(kInvalid, {"sgd", "learning_rate of 0 or more", concat(rate)},
                 [&] { Sgd(variables, rate); });
    expect_error(kInvalid, {"sgd", "learning_rate"}, [&] { optimizer.set_learning_rate(rate); });
    Sgd later(variables, PiecewiseConstantDecay({0}, {1.0, rate}));
    (void)weights_after(later, {{0.0}});
    expect_error(kInvalid, {"sgd", "learning_rate"}, [&] { (void)weights_after(later, {{1.0}}); });
    EXPECT_EQ(variables[0].value().item_double(), 1.0);
  }
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
  EXPECT_EQ(Sgd(variables, 0.0).learning_rate(), 0.0);
}

TEST(LearningRateScheduleTest, AConstantRateMayBeChanged) {
  Sgd optimizer(std::vector{variable(doubles({0.0}), "w")}, {.learning_rate = 0.5});
  optimizer.set_learning_rate(0.25);
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
  EXPECT_DOUBLE_EQ(weights_after(optimizer, {{1.0}})[0], -0.25);
  // Whatever restores the state variable changes the rate, too.
  optimizer.state_variables()[1].assign(0.125);
  EXPECT_EQ(optimizer.learning_rate(), 0.125);
}

}  // namespace
}  // namespace tutti
