// AdamW, RMSprop, Adagrad, Adadelta, Nadam, Ftrl and Lion against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;
using Steps = std::vector<std::vector<double>>;

const std::vector<double> kRuleStart = {0.5, -1.0, 2.0, 0.0, 1e-3};

/// Trains one variable of these weights for 20 steps; `by_hand` does the same for one weight, given
/// its gradients.
template <class Options>
void expect_rule(const Options& options,
                 const std::function<double(double w, const std::vector<double>& g)>& by_hand,
                 double tolerance = 1e-12) {
  typename Options::MadeOptimizer optimizer(std::vector{variable(doubles(kRuleStart), "w")},
                                            options);
  const Steps steps = gradients_of_steps(20, kRuleStart.size());
  const std::vector<double> actual = weights_after(optimizer, steps);
  for (std::size_t i = 0; i < kRuleStart.size(); ++i) {
    std::vector<double> gradients;
    for (const auto& step : steps) gradients.push_back(step[i]);
    EXPECT_NEAR(actual[i], by_hand(kRuleStart[i], gradients), tolerance) << "weight " << i;
  }
}

TEST(AdaptiveRules, AdamWDecaysAndThenFollowsAdam) {
  const auto by_hand = [](double rate, double decay) {
    return [=](double w, const std::vector<double>& gradients) {
      double m = 0, v = 0;
      int t = 0;
      for (const double g : gradients) {
        ++t;
        w = w - w * decay * rate;
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        const double alpha = rate * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
        w = w - alpha * m / (std::sqrt(v) + 1e-7);
      }
      return w;
    };
  };
  expect_rule(AdamWOptions{}, by_hand(0.001, 0.004));
  expect_rule(AdamWOptions{.learning_rate = 0.1, .weight_decay = 0.3}, by_hand(0.1, 0.3));
  EXPECT_EQ(AdamW(std::vector{variable(doubles({0.0}), "w")}, 0.25).learning_rate(), 0.25);
  EXPECT_EQ(AdamW(std::vector{variable(doubles({0.0}), "w")},
                  ExponentialDecay({.initial_learning_rate = 0.5}))
                .learning_rate(),
            0.5);
  expect_error(kInvalid, {"adamw", "weight_decay", "Adam"}, [] {
    AdamW(std::vector{variable(doubles({0.0}), "w")}, {.weight_decay = std::nullopt});
  });
}

TEST(AdaptiveRules, RmspropInItsFourForms) {
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.8}) {
      const auto by_hand = [=](double w, const std::vector<double>& gradients) {
        double v = 0, a = 0, m = 0;
        for (const double g : gradients) {
          v = 0.9 * v + 0.1 * g * g;
          a = 0.9 * a + 0.1 * g;
          const double step = 0.01 * g / std::sqrt((centered ? v - a * a : v) + 1e-3);
          m = momentum * m + step;
          w -= m;
        }
        return w;
      };
      expect_rule(
          RmspropOptions{
              .learning_rate = 0.01, .momentum = momentum, .epsilon = 1e-3, .centered = centered},
          by_hand);
    }
  }
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

TEST(AdaptiveRules, RmspropOfKerassDocumentation) {
  // d(w^2 / 2) / dw = w = 10 and a rate of 0.1: 9.683772.
  Rmsprop optimizer(std::vector{variable(doubles({10.0}), "w")}, {.learning_rate = 0.1});
  EXPECT_NEAR(weights_after(optimizer, {{10.0}})[0], 9.683772, 1e-6);
}

TEST(AdaptiveRules, Adagrad) {
  const auto by_hand = [](double rate, double first, double epsilon) {
    return [=](double w, const std::vector<double>& gradients) {
      double sum = first;
      for (const double g : gradients) {
        sum += g * g;
        w -= rate * g / std::sqrt(sum + epsilon);
      }
      return w;
    };
  };
  expect_rule(AdagradOptions{}, by_hand(0.001, 0.1, 1e-7));
  expect_rule(
      AdagradOptions{.learning_rate = 1.0, .initial_accumulator_value = 0.0, .epsilon = 1e-2},
      by_hand(1.0, 0.0, 1e-2));
}

TEST(AdaptiveRules, Adadelta) {
  const auto by_hand = [](double rate, double rho, double epsilon) {
    return [=](double w, const std::vector<double>& gradients) {
      double squares = 0, deltas = 0;
      for (const double g : gradients) {
        squares = rho * squares + (1 - rho) * g * g;
        const double delta = -std::sqrt((deltas + epsilon) / (squares + epsilon)) * g;
        deltas = rho * deltas + (1 - rho) * delta * delta;
        w += rate * delta;
      }
      return w;
    };
  };
  expect_rule(AdadeltaOptions{}, by_hand(0.001, 0.95, 1e-7));
  expect_rule(AdadeltaOptions{.learning_rate = 1.0, .rho = 0.7, .epsilon = 1e-2},
              by_hand(1.0, 0.7, 1e-2));
}

TEST(AdaptiveRules, Nadam) {
  const auto by_hand = [](double rate, double beta_1, double beta_2) {
    return [=](double w, const std::vector<double>& gradients) {
      double m = 0, v = 0, product = 1;
      int t = 0;
      for (const double g : gradients) {
        ++t;
        const double now = beta_1 * (1 - 0.5 * std::pow(0.96, t));
        const double next = beta_1 * (1 - 0.5 * std::pow(0.96, t + 1));
        product *= now;
        m = beta_1 * m + (1 - beta_1) * g;
        v = beta_2 * v + (1 - beta_2) * g * g;
        const double mean = next * m / (1 - product * next) + (1 - now) * g / (1 - product);
        w -= rate * mean / (std::sqrt(v / (1 - std::pow(beta_2, t))) + 1e-7);
      }
      return w;
    };
  };
  expect_rule(NadamOptions{}, by_hand(0.001, 0.9, 0.999));
  expect_rule(NadamOptions{.learning_rate = 0.1, .beta_1 = 0.5, .beta_2 = 0.8},
              by_hand(0.1, 0.5, 0.8));
}

TEST(AdaptiveRules, Ftrl) {
  std::vector<FtrlOptions> cases(4);
  cases[1] = {.learning_rate = 0.1, .l1_regularization_strength = 0.3};
  cases[2] = {.learning_rate = 0.1,
              .learning_rate_power = -0.7,
              .initial_accumulator_value = 0.5,
              .l2_regularization_strength = 0.2,
              .beta = 0.4};
  cases[3] = {.learning_rate = 0.1, .l2_shrinkage_regularization_strength = 0.05};
  for (const FtrlOptions& options : cases) {
    // As Keras's documentation writes it.
    const auto by_hand = [&](double w, const std::vector<double>& gradients) {
      const double rate = options.learning_rate.constant, power = -options.learning_rate_power;
      const double l1 = options.l1_regularization_strength;
      double n = options.initial_accumulator_value, z = 0;
      for (const double g : gradients) {
        const double n_before = n;
        n += g * g;
        const double sigma = (std::pow(n, power) - std::pow(n_before, power)) / rate;
        z += g + 2 * options.l2_shrinkage_regularization_strength * w - sigma * w;
        const double divisor =
            (options.beta + std::pow(n, power)) / rate + 2 * options.l2_regularization_strength;
        w = std::abs(z) < l1 ? 0.0 : (std::copysign(l1, z) - z) / divisor;
      }
      return w;
    };
    expect_rule(options, by_hand, 1e-11);
  }
}

TEST(AdaptiveRules, FtrlWithL1KeepsWeightsAtZero) {
  Ftrl optimizer(std::vector{variable(doubles({1.0, 1.0}), "w")},
                 {.learning_rate = 0.1, .l1_regularization_strength = 5.0});
  const auto weights = weights_after(optimizer, Steps(10, {0.1, -3.0}));
  EXPECT_EQ(weights[0], 0.0);
  EXPECT_GT(weights[1], 0.0);
}

TEST(AdaptiveRules, Lion) {
  const auto by_hand = [](double rate, double beta_1, double beta_2) {
    return [=](double w, const std::vector<double>& gradients) {
      double m = 0;
      for (const double g : gradients) {
        const double mixed = beta_1 * m + (1 - beta_1) * g;
        w -= mixed > 0 ? rate : mixed < 0 ? -rate : 0.0;
        m = beta_2 * m + (1 - beta_2) * g;
      }
      return w;
    };
  };
  expect_rule(LionOptions{}, by_hand(0.001, 0.9, 0.99));
  expect_rule(LionOptions{.learning_rate = 0.1, .beta_1 = 0.5, .beta_2 = 0.8},
              by_hand(0.1, 0.5, 0.8));
}

TEST(AdaptiveRules, LionPassesOnWhatIsNoNumber) {
  Lion optimizer(std::vector{variable(doubles({1.0, 1.0}), "w")});
  const auto weights = weights_after(optimizer, {{std::nan(""), 0.0}});
  EXPECT_TRUE(std::isnan(weights[0]));
  EXPECT_EQ(weights[1], 1.0);  // the sign of 0 is 0
}

TEST(AdaptiveRules, RefuseHyperparametersThatMakeNoSense) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  expect_error(kInvalid, {"rmsprop", "rho", "1.5"}, [&] { Rmsprop(w, {.rho = 1.5}); });
  expect_error(kInvalid, {"adagrad", "-1"}, [&] { Adagrad(w, {.initial_accumulator_value = -1}); });
  expect_error(kInvalid, {"adadelta", "epsilon"}, [&] { Adadelta(w, {.epsilon = 0.0}); });
  expect_error(kInvalid, {"nadam", "beta_1"}, [&] { Nadam(w, {.beta_1 = 1.0}); });
  expect_error(kInvalid, {"ftrl", "learning_rate_power"},
               [&] { Ftrl(w, {.learning_rate_power = 0.5}); });
  expect_error(kInvalid, {"ftrl", "-2"}, [&] { Ftrl(w, {.l1_regularization_strength = -2}); });
  expect_error(kInvalid, {"lion", "beta_1", "(0, 1]"}, [&] { Lion(w, {.beta_1 = 0.0}); });
}

}  // namespace
}  // namespace tutti
