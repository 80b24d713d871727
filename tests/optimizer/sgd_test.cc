// SGD against plain loops in double, and with known numbers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/sgd.h"

#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/learning_rate_schedules.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

std::vector<double> sgd_by_hand(std::vector<double> w,
                                const std::vector<std::vector<double>>& steps,
                                const std::vector<double>& rates, double momentum, bool nesterov) {
  std::vector<double> velocity(w.size(), 0.0);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const auto& g = steps[s];
    const double rate = rates[s];
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (momentum == 0.0) {
        w[i] = w[i] - rate * g[i];
        continue;
      }
      velocity[i] = momentum * velocity[i] - rate * g[i];
      w[i] = nesterov ? w[i] + momentum * velocity[i] - rate * g[i] : w[i] + velocity[i];
    }
  }
  return w;
}

TEST(SgdTest, FollowsKerassRuleOver20Steps) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.0, 1e-3};
  const auto steps = gradients_of_steps(20, start.size());
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      Sgd optimizer(std::vector{variable(doubles(start), "w")},
                    {.learning_rate = 0.1, .momentum = momentum, .nesterov = nesterov});
      expect_near_all(weights_after(optimizer, steps),
                      sgd_by_hand(start, steps, std::vector<double>(20, 0.1), momentum, nesterov),
                      1e-14);
      EXPECT_EQ(optimizer.iterations().value().item_int(), 20);
    }
  }
}

// Keras multiplies the gradient by the rate before it enters the velocity, PyTorch when the
// velocity leaves it: the two differ as soon as the rate changes.
TEST(SgdTest, MomentumUnderAChangingRateFollowsKerassRule) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.0, 1e-3};
  const auto steps = gradients_of_steps(20, start.size());
  const std::vector<double> rates = changing_rates(steps.size());
  for (const bool nesterov : {false, true}) {
    Sgd optimizer(std::vector{variable(doubles(start), "w")},
                  {.momentum = 0.9, .nesterov = nesterov});
    expect_near_all(weights_after(optimizer, steps, rates),
                    sgd_by_hand(start, steps, rates, 0.9, nesterov), 1e-13);
  }
  // g = 1 twice, rates 0.1 and 0.01: velocity -0.1, then 0.9 * -0.1 - 0.01.
  Sgd optimizer(std::vector{variable(doubles({0.0}), "w")}, {.momentum = 0.9});
  EXPECT_NEAR(weights_after(optimizer, {{1.0}, {1.0}}, {0.1, 0.01})[0], -0.2, 1e-15);
}

TEST(SgdTest, MomentumUnderAScheduleFollowsKerassRule) {
  const std::vector<double> start = {0.5, -1.0, 2.0};
  const auto steps = gradients_of_steps(12, start.size());
  std::vector<double> rates;
  for (int s = 0; s < 12; ++s) rates.push_back(0.2 * std::pow(0.5, s / 4.0));
  Sgd optimizer(std::vector{variable(doubles(start), "w")},
                {.learning_rate = ExponentialDecay(
                     {.initial_learning_rate = 0.2, .decay_steps = 4, .decay_rate = 0.5}),
                 .momentum = 0.9});
  expect_near_all(weights_after(optimizer, steps), sgd_by_hand(start, steps, rates, 0.9, false),
                  1e-13);
}

TEST(SgdTest, MomentumByHandForTwoSteps) {
  // g = 1 twice, rate 0.1, momentum 0.9: velocity -0.1, then -0.19.
  const std::vector<std::vector<double>> steps = {{1.0}, {1.0}};
  Sgd plain(std::vector{variable(doubles({0.0}), "a")}, {.learning_rate = 0.1});
  EXPECT_NEAR(weights_after(plain, steps)[0], -0.2, 1e-15);
  Sgd heavy(std::vector{variable(doubles({0.0}), "b")}, {.learning_rate = 0.1, .momentum = 0.9});
  EXPECT_NEAR(weights_after(heavy, steps)[0], -0.29, 1e-15);
  Sgd nesterov(std::vector{variable(doubles({0.0}), "c")},
               {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
  EXPECT_NEAR(weights_after(nesterov, steps)[0], -0.19 - 0.271, 1e-15);
}

TEST(SgdTest, DefaultsAreKerass) {
  const Sgd optimizer(std::vector{variable(doubles({0.0}), "w")});
  EXPECT_EQ(optimizer.learning_rate(), 0.01);
  EXPECT_EQ(optimizer.name(), "sgd");
  EXPECT_TRUE(optimizer.rule().slots().empty());
  EXPECT_TRUE(optimizer.rule().skips_zero_gradient());
  EXPECT_FALSE(SgdRule(0.9).skips_zero_gradient());
}

TEST(SgdTest, Float32IsComputedInFloat32) {
  Sgd optimizer(std::vector{variable(floats({1.0f, -3.0f}), "w")}, {.learning_rate = 0.1});
  const Gradient gradient(floats({0.3f, 0.7f}));
  optimizer.apply_gradients({&gradient, 1});
  const Tensor after = optimizer.variables()[0].value();
  EXPECT_EQ(after.host_span<float>()[0], 1.0f - 0.1f * 0.3f);
  EXPECT_EQ(after.host_span<float>()[1], -3.0f - 0.1f * 0.7f);
}

TEST(SgdTest, RefusesAMomentumOutsideTheUnitInterval) {
  for (const double momentum : {-0.1, 1.5}) {
    expect_error(kInvalid, {"sgd", "[0, 1]", concat(momentum)},
                 [&] { Sgd(std::vector{variable(doubles({0.0}), "w")}, {.momentum = momentum}); });
  }
}

}  // namespace
}  // namespace tutti
