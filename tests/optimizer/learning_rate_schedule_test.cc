// Tests learning-rate schedules.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/learning_rate_schedules.h"

namespace tutti::learning_rate_schedule_test {

using namespace optimizer_tests;

TEST(LearningRateScheduleTest, PiecewiseIncludesTheBoundaryAndRefusesWhatIsNoSchedule) {
  const PiecewiseConstantDecay decay({100, 110}, {1.0, 0.5, 0.1});  // Keras's documented example
  EXPECT_EQ(decay(0), 1.0);
  EXPECT_EQ(decay(100), 1.0);
  EXPECT_EQ(decay(101), 0.5);
  EXPECT_EQ(decay(110), 0.5);
  EXPECT_EQ(decay(111), 0.1);
  EXPECT_EQ(PiecewiseConstantDecay({}, {0.3})(5), 0.3);
  EXPECT_INVALID(PiecewiseConstantDecay({1, 2}, {0.1, 0.2}), "PiecewiseConstantDecay", "[1, 2]",
                 "2 values");
  EXPECT_INVALID(PiecewiseConstantDecay({2, 2}, {0.1, 0.2, 0.3}), "ascending", "[2, 2]");
  EXPECT_INVALID(ExponentialDecay({.decay_steps = 0}), "ExponentialDecay", "decay_steps", "0");
  EXPECT_INVALID(ExponentialDecay({.decay_rate = 0.0}), "decay_rate");
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
  EXPECT_ERROR(optimizer.set_learning_rate(0.5), kFailedPrecondition, "sgd.set_learning_rate",
               "schedule");
}

TEST(LearningRateScheduleTest, RatesThatAreNegativeOrNotFiniteAreRefused) {
  const std::vector variables{variable(doubles({1.0}), "w")};
  const std::vector<double> wrong = {-0.1, std::numeric_limits<double>::quiet_NaN(),
                                     std::numeric_limits<double>::infinity()};
  Sgd optimizer(variables, 0.5);
  for (const double rate : wrong) {
    EXPECT_INVALID(Sgd(variables, rate), "sgd", "learning_rate of 0 or more", concat(rate));
    EXPECT_INVALID(optimizer.set_learning_rate(rate), "sgd", "learning_rate");
    Sgd later(variables, PiecewiseConstantDecay({0}, {1.0, rate}));
    (void)weights_after(later, {{0.0}});
    EXPECT_INVALID((void)weights_after(later, {{1.0}}), "sgd", "learning_rate");
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
  // Restoring the state variable by any means changes the rate.
  optimizer.state_variables()[1].assign(0.125);
  EXPECT_EQ(optimizer.learning_rate(), 0.125);
}

TEST(LinearWarmUpTest, ComesBeforeAnySchedule) {
  const LinearWarmUp constant({.then = 0.8, .initial_learning_rate = 0.2, .warm_up_steps = 3});
  EXPECT_DOUBLE_EQ(constant(0), 0.2);
  EXPECT_DOUBLE_EQ(constant(1), 0.4);
  EXPECT_DOUBLE_EQ(constant(3), 0.8);
  EXPECT_DOUBLE_EQ(constant(100), 0.8);
  const LinearWarmUp cosine(
      {.then = CosineDecay({.initial_learning_rate = 1.0, .decay_steps = 10}), .warm_up_steps = 4});
  EXPECT_DOUBLE_EQ(cosine(0), 0.0);
  EXPECT_DOUBLE_EQ(cosine(2), 0.5);
  EXPECT_DOUBLE_EQ(cosine(4), 1.0);
  EXPECT_DOUBLE_EQ(cosine(9), 0.5);
  EXPECT_DOUBLE_EQ(LinearWarmUp({.then = 0.3})(0), 0.3);
}

TEST(WarmUpStableDecayTest, RisesStaysAndFalls) {
  WarmUpStableDecayOptions options{.learning_rate = 1.0,
                                   .warm_up_steps = 4,
                                   .stable_steps = 10,
                                   .decay_steps = 4,
                                   .final_learning_rate = 0.2};
  const WarmUpStableDecay linear(options);
  EXPECT_DOUBLE_EQ(linear(0), 0.0);
  EXPECT_DOUBLE_EQ(linear(2), 0.5);
  for (const int iteration : {4, 9, 13, 14}) EXPECT_DOUBLE_EQ(linear(iteration), 1.0);
  EXPECT_DOUBLE_EQ(linear(15), 0.8);
  EXPECT_DOUBLE_EQ(linear(18), 0.2);
  EXPECT_DOUBLE_EQ(linear(1000), 0.2);
  options.shape = DecayShape::kCosine;
  EXPECT_DOUBLE_EQ(WarmUpStableDecay(options)(16), 0.6);
  options.shape = DecayShape::kOneMinusSquareRoot;
  EXPECT_DOUBLE_EQ(WarmUpStableDecay(options)(15), 0.6);
  EXPECT_DOUBLE_EQ(WarmUpStableDecay({.learning_rate = 1.0, .decay_steps = 0})(0), 0.0);
}

TEST(LearningRateSpecTest, MakesEverySchedule) {
  const LearningRate cosine = make_learning_rate(
      "cosine_decay", {{"initial_learning_rate", 2.0}, {"decay_steps", 100}, {"alpha", 0.1}});
  EXPECT_DOUBLE_EQ(cosine.at(50), 1.1);
  EXPECT_DOUBLE_EQ(make_learning_rate("constant", {{"learning_rate", 0.3}}).at(7), 0.3);
  EXPECT_DOUBLE_EQ(make_learning_rate("exponential_decay", {{"initial_learning_rate", 1.0},
                                                            {"decay_steps", 10},
                                                            {"decay_rate", 0.5},
                                                            {"staircase", 1}})
                       .at(19),
                   0.5);
  EXPECT_DOUBLE_EQ(
      make_learning_rate("linear_warm_up", {{"learning_rate", 1.0}, {"warm_up_steps", 4}}).at(1),
      0.25);
  for (const std::string& name : learning_rate_schedule_names()) {
    EXPECT_GE(make_learning_rate(name, {}).at(0), 0.0) << name;
  }
}

TEST(LearningRateSpecTest, ListsWhatThereIsAndRefusesWhatMakesNoSense) {
  EXPECT_INVALID(make_learning_rate("cosine", {}), "'cosine'",
                 "constant, cosine_decay, cosine_decay_restarts");
  EXPECT_INVALID(make_learning_rate("polynomial_decay", {{"steps", 1.0}}), "'polynomial_decay'",
                 "'steps'", "decay_steps", "power, cycle");
  EXPECT_INVALID(make_learning_rate("polynomial_decay", {{"decay_steps", 1.5}}), "decay_steps",
                 "whole number", "1.5");
  EXPECT_INVALID(make_learning_rate("cosine_decay", {{"decay_steps", 0}}), "CosineDecay",
                 "decay_steps", "0");
  EXPECT_INVALID(CosineDecay({.warmup_steps = 3}), "CosineDecay", "warmup_target");
  EXPECT_INVALID(CosineDecayRestarts({.t_mul = 0.5}), "CosineDecayRestarts", "t_mul", "0.5");
  EXPECT_INVALID(PolynomialDecay({.decay_steps = 0}), "PolynomialDecay", "decay_steps");
  EXPECT_INVALID(InverseTimeDecay({.decay_rate = -1.0}), "InverseTimeDecay", "decay_rate");
  EXPECT_INVALID(LinearWarmUp({.warm_up_steps = -1}), "LinearWarmUp", "-1");
  EXPECT_INVALID(WarmUpStableDecay({.stable_steps = -5}), "WarmUpStableDecay", "-5");
}

}  // namespace tutti::learning_rate_schedule_test
