// AdamW, RMSprop, Adagrad, Adadelta, Nadam, Ftrl and Lion where Keras has no record: tests/parity
// has the rules.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <tuple>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;
using Steps = std::vector<std::vector<double>>;

const std::vector<double> kRuleStart = {0.5, -1.0, 2.0, 0.0, 1e-3};

TEST(AdaptiveRules, DefaultsOfKeras) {
  const AdamWOptions adamw;
  EXPECT_EQ(std::tuple(adamw.beta_1, adamw.beta_2, adamw.epsilon, *adamw.weight_decay),
            std::tuple(0.9, 0.999, 1e-7, 0.004));
  const AdagradOptions adagrad;
  EXPECT_EQ(std::tuple(adagrad.initial_accumulator_value, adagrad.epsilon), std::tuple(0.1, 1e-7));
  const AdadeltaOptions adadelta;
  EXPECT_EQ(std::tuple(adadelta.rho, adadelta.epsilon), std::tuple(0.95, 1e-7));
  const NadamOptions nadam;
  EXPECT_EQ(std::tuple(nadam.beta_1, nadam.beta_2, nadam.epsilon), std::tuple(0.9, 0.999, 1e-7));
  const FtrlOptions ftrl;
  EXPECT_EQ(std::tuple(ftrl.learning_rate_power, ftrl.initial_accumulator_value, ftrl.beta),
            std::tuple(-0.5, 0.1, 0.0));
  const LionOptions lion;
  EXPECT_EQ(std::tuple(lion.beta_1, lion.beta_2), std::tuple(0.9, 0.99));
}

TEST(AdaptiveRules, AdamWWithRateScheduleOrWithoutDecay) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_EQ(AdamW(w, 0.25).learning_rate(), 0.25);
  EXPECT_EQ(AdamW(w, ExponentialDecay({.initial_learning_rate = 0.5})).learning_rate(), 0.5);
  EXPECT_ERROR(AdamW(w, {.weight_decay = std::nullopt}), kInvalidArgument, "adamw", "weight_decay",
               "Adam");
}

// As in Keras the step that enters the momentum has the rate of its own time.
TEST(AdaptiveRules, RmspropsMomentumUnderAChangingRate) {
  const Steps steps = gradients_of_steps(20, kRuleStart.size());
  const std::vector<double> rates = changing_rates(steps.size());
  for (const bool centered : {false, true}) {
    std::vector<double> expected = kRuleStart;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double v = 0, a = 0, m = 0;
      for (std::size_t s = 0; s < steps.size(); ++s) {
        const double g = steps[s][i];
        v = 0.9 * v + 0.1 * g * g;
        a = 0.9 * a + 0.1 * g;
        m = 0.8 * m + rates[s] * g / std::sqrt((centered ? v - a * a : v) + 1e-3);
        expected[i] -= m;
      }
    }
    Rmsprop optimizer(std::vector{variable(doubles(kRuleStart), "w")},
                      {.momentum = 0.8, .epsilon = 1e-3, .centered = centered});
    expect_near_all(weights_after(optimizer, steps, rates), expected, 1e-12);
  }
}

TEST(AdaptiveRules, FtrlWithL1KeepsWeightsAtZero) {
  Ftrl optimizer(std::vector{variable(doubles({1.0, 1.0}), "w")},
                 {.learning_rate = 0.1, .l1_regularization_strength = 5.0});
  const auto weights = weights_after(optimizer, Steps(10, {0.1, -3.0}));
  EXPECT_EQ(weights[0], 0.0);
  EXPECT_GT(weights[1], 0.0);
}

TEST(AdaptiveRules, LionPassesOnWhatIsNoNumber) {
  Lion optimizer(std::vector{variable(doubles({1.0, 1.0}), "w")});
  const auto weights = weights_after(optimizer, {{std::nan(""), 0.0}});
  EXPECT_TRUE(std::isnan(weights[0]));
  EXPECT_EQ(weights[1], 1.0);  // the sign of 0 is 0
}

TEST(AdaptiveRules, RefuseHyperparametersThatMakeNoSense) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_ERROR(Rmsprop(w, {.rho = 1.5}), kInvalidArgument, "rmsprop", "rho", "1.5");
  EXPECT_ERROR(Adagrad(w, {.initial_accumulator_value = -1}), kInvalidArgument, "adagrad", "-1");
  EXPECT_ERROR(Adadelta(w, {.epsilon = 0.0}), kInvalidArgument, "adadelta", "epsilon");
  EXPECT_ERROR(Nadam(w, {.beta_1 = 1.0}), kInvalidArgument, "nadam", "beta_1");
  EXPECT_ERROR(Ftrl(w, {.learning_rate_power = 0.5}), kInvalidArgument, "ftrl",
               "learning_rate_power");
  EXPECT_ERROR(Ftrl(w, {.l1_regularization_strength = -2}), kInvalidArgument, "ftrl", "-2");
  EXPECT_ERROR(Lion(w, {.beta_1 = 0.0}), kInvalidArgument, "lion", "beta_1", "(0, 1]");
}

}  // namespace
}  // namespace tutti
