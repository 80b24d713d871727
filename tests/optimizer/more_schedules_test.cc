// Cosine, polynomial and inverse-time rates, warm-ups, and schedules by name.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/learning_rate_schedules.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

TEST(CosineDecayTest, FallsFromTheFirstRateToAlphaOfIt) {
  const CosineDecay decay({.initial_learning_rate = 2.0, .decay_steps = 100, .alpha = 0.1});
  EXPECT_DOUBLE_EQ(decay(0), 2.0);
  EXPECT_DOUBLE_EQ(decay(50), 2.0 * (0.9 * 0.5 + 0.1));
  EXPECT_DOUBLE_EQ(decay(25), 2.0 * (0.9 * (1.0 + std::sqrt(0.5)) / 2.0 + 0.1));
  EXPECT_DOUBLE_EQ(decay(100), 0.2);
  EXPECT_DOUBLE_EQ(decay(1000), 0.2);
}

TEST(CosineDecayTest, MayWarmUpFirst) {
  const CosineDecay decay(
      {.initial_learning_rate = 0.5, .decay_steps = 10, .warmup_target = 1.5, .warmup_steps = 4});
  EXPECT_DOUBLE_EQ(decay(0), 0.5);
  EXPECT_DOUBLE_EQ(decay(1), 0.75);
  EXPECT_DOUBLE_EQ(decay(4), 1.5);
  EXPECT_DOUBLE_EQ(decay(9), 0.75);
  EXPECT_NEAR(decay(14), 0.0, 1e-15);
  EXPECT_NEAR(decay(99), 0.0, 1e-15);
}

TEST(CosineDecayTest, RestartsInLongerPeriods) {
  const CosineDecayRestarts decay(
      {.initial_learning_rate = 1.0, .first_decay_steps = 10, .t_mul = 2.0, .m_mul = 0.5});
  EXPECT_DOUBLE_EQ(decay(0), 1.0);
  EXPECT_DOUBLE_EQ(decay(5), 0.5);
  EXPECT_DOUBLE_EQ(decay(10), 0.5);   // the second period begins, 20 long
  EXPECT_DOUBLE_EQ(decay(20), 0.25);  // its middle
  EXPECT_DOUBLE_EQ(decay(30), 0.25);  // the third, 40 long
  EXPECT_DOUBLE_EQ(decay(70), 0.125);
}

TEST(CosineDecayTest, RestartsInEqualPeriods) {
  const CosineDecayRestarts decay({.initial_learning_rate = 1.0,
                                   .first_decay_steps = 4,
                                   .t_mul = 1.0,
                                   .m_mul = 0.9,
                                   .alpha = 0.2});
  for (const int period : {0, 1, 1000}) {
    EXPECT_NEAR(decay(4 * period), 0.8 * std::pow(0.9, period) + 0.2, 1e-15);
    EXPECT_NEAR(decay(4 * period + 2), 0.8 * std::pow(0.9, period) * 0.5 + 0.2, 1e-15);
  }
}

TEST(PolynomialDecayTest, EndsOrCycles) {
  PolynomialDecayOptions options{
      .initial_learning_rate = 1.0, .decay_steps = 10, .end_learning_rate = 0.2, .power = 2.0};
  const PolynomialDecay once(options);
  EXPECT_DOUBLE_EQ(once(0), 1.0);
  EXPECT_DOUBLE_EQ(once(5), 0.8 * 0.25 + 0.2);
  EXPECT_DOUBLE_EQ(once(10), 0.2);
  EXPECT_DOUBLE_EQ(once(25), 0.2);
  options.cycle = true;
  const PolynomialDecay cycling(options);
  EXPECT_DOUBLE_EQ(cycling(0), 1.0);
  EXPECT_DOUBLE_EQ(cycling(10), 0.2);
  EXPECT_DOUBLE_EQ(cycling(15), 0.8 * 0.0625 + 0.2);  // of 20 steps
}

TEST(InverseTimeDecayTest, SmoothAndInJumps) {
  const InverseTimeDecay smooth(
      {.initial_learning_rate = 1.0, .decay_steps = 4, .decay_rate = 0.5});
  EXPECT_DOUBLE_EQ(smooth(0), 1.0);
  EXPECT_DOUBLE_EQ(smooth(2), 0.8);
  EXPECT_DOUBLE_EQ(smooth(8), 0.5);
  const InverseTimeDecay jumping(
      {.initial_learning_rate = 1.0, .decay_steps = 4, .decay_rate = 0.5, .staircase = true});
  EXPECT_DOUBLE_EQ(jumping(3), 1.0);
  EXPECT_DOUBLE_EQ(jumping(7), 1.0 / 1.5);
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

TEST(LearningRateSpecTest, ListsWhatThereIs) {
  expect_error(kInvalid, {"'cosine'", "constant, cosine_decay, cosine_decay_restarts"},
               [] { make_learning_rate("cosine", {}); });
  expect_error(kInvalid, {"'polynomial_decay'", "'steps'", "decay_steps", "power, cycle"}, [] {
    make_learning_rate("polynomial_decay", {{"steps", 1.0}});
  });
  expect_error(kInvalid, {"decay_steps", "whole number", "1.5"}, [] {
    make_learning_rate("polynomial_decay", {{"decay_steps", 1.5}});
  });
  expect_error(kInvalid, {"CosineDecay", "decay_steps", "0"}, [] {
    make_learning_rate("cosine_decay", {{"decay_steps", 0}});
  });
}

TEST(LearningRateSpecTest, SchedulesRefuseWhatMakesNoSense) {
  expect_error(kInvalid, {"CosineDecay", "warmup_target"},
               [] { CosineDecay({.warmup_steps = 3}); });
  expect_error(kInvalid, {"CosineDecayRestarts", "t_mul", "0.5"},
               [] { CosineDecayRestarts({.t_mul = 0.5}); });
  expect_error(kInvalid, {"PolynomialDecay", "decay_steps"},
               [] { PolynomialDecay({.decay_steps = 0}); });
  expect_error(kInvalid, {"InverseTimeDecay", "decay_rate"},
               [] { InverseTimeDecay({.decay_rate = -1.0}); });
  expect_error(kInvalid, {"LinearWarmUp", "-1"}, [] { LinearWarmUp({.warm_up_steps = -1}); });
  expect_error(kInvalid, {"WarmUpStableDecay", "-5"},
               [] { WarmUpStableDecay({.stable_steps = -5}); });
}

}  // namespace
}  // namespace tutti
