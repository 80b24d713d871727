// SGD against plain loops in double, and with known numbers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/sgd.h"
#include "tests/optimizer/optimizer_helpers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

std::vector<double> sgd_by_hand(std::vector<double> w,
                                const std::vector<std::vector<double>>& steps, double rate,
                                double momentum, bool nesterov) {
  std::vector<double> velocity(w.size(), 0.0);
  for (const auto& g : steps) {
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
                      sgd_by_hand(start, steps, 0.1, momentum, nesterov), 1e-14);
      EXPECT_EQ(optimizer.iterations().value().item_int(), 20);
    }
  }
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
