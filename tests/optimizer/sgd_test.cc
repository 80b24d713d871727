// SGD and Adam with its kin: their published rules, step by step.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"

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
      velocity[i] = momentum * velocity[i] - rate * g[i];
      w[i] = nesterov ? w[i] + momentum * velocity[i] - rate * g[i] : w[i] + velocity[i];
    }
  }
  return w;
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
    EXPECT_ERROR(Sgd(std::vector{variable(doubles({0.0}), "w")}, {.momentum = momentum}),
                 kInvalidArgument, "sgd", "[0, 1]", concat(momentum));
  }
}

TEST(UpdateRules, WithoutMomentumSkipZeroGradients) {
  EXPECT_TRUE(SgdRule().skips_zero_gradient());
  EXPECT_FALSE(SgdRule(0.9).skips_zero_gradient());
  EXPECT_FALSE(AdamRule().skips_zero_gradient());  // momentum goes on without a gradient
  EXPECT_EQ(AdamRule({.amsgrad = true}).slots()[2].name, "velocity_hat");
}

/// A vectorised loop must give the bits of the formula, wherever a run of elements begins.
template <class T>
void expect_bits_of_the_formula(bool amsgrad) {
  constexpr std::size_t kCount = 1003;
  const RandomStream stream(RandomKey{8, kUserPurpose});
  std::vector<T> w(kCount), m(kCount), v(kCount), v_hat(kCount), g(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    w[i] = static_cast<T>(stream.normal(i));
    m[i] = static_cast<T>(stream.normal(2000 + i));
    v[i] = static_cast<T>(stream.uniform64(4000 + i));
    v_hat[i] = static_cast<T>(stream.uniform64(6000 + i));
    g[i] = static_cast<T>(stream.normal(8000 + i));
  }
  const auto before = w, m_before = m, v_before = v, v_hat_before = v_hat;
  const AdamRule rule({.amsgrad = amsgrad});
  for (const auto& [first, count] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {1, 500}, {501, 502}}) {
    void* const slots[] = {&m[first], &v[first], &v_hat[first]};
    rule.apply({dtype_of<T>(),
                count,
                &w[first],
                std::span(slots).first(amsgrad ? 3 : 2),
                &g[first],
                {.learning_rate = 0.01, .iteration = 4, .gradient_scale = 0.5}});
  }
  const T alpha =
      static_cast<T>(0.01 * std::sqrt(1.0 - std::pow(0.999, 5.0)) / (1.0 - std::pow(0.9, 5.0)));
  for (std::size_t i = 0; i < kCount; ++i) {
    const T scaled = g[i] * T(0.5);
    const T mean = m_before[i] + (scaled - m_before[i]) * static_cast<T>(1.0 - 0.9);
    const T square = v_before[i] + (scaled * scaled - v_before[i]) * static_cast<T>(1.0 - 0.999);
    const T second = amsgrad ? std::max(v_hat_before[i], square) : square;
    ASSERT_EQ(m[i], mean);
    ASSERT_EQ(v[i], square);
    ASSERT_EQ(v_hat[i], amsgrad ? second : v_hat_before[i]);
    ASSERT_EQ(w[i], before[i] - mean * alpha / (std::sqrt(second) + static_cast<T>(1e-7)));
  }
}

TEST(AdamTest, AnyPartitionGivesTheBitsOfTheFormula) {
  for (const bool amsgrad : {false, true}) {
    expect_bits_of_the_formula<float>(amsgrad);
    expect_bits_of_the_formula<double>(amsgrad);
  }
}

TEST(AdamTest, RefusesBetasThatAreNoAverages) {
  const auto make = [](double beta_1, double beta_2, double epsilon) {
    Adam(std::vector{variable(doubles({0.0}), "w")},
         {.beta_1 = beta_1, .beta_2 = beta_2, .epsilon = epsilon});
  };
  EXPECT_ERROR(make(1.0, 0.9, 1e-7), kInvalidArgument, "adam", "beta_1", "[0, 1)");
  EXPECT_ERROR(make(0.9, -0.1, 1e-7), kInvalidArgument, "beta_2");
  EXPECT_ERROR(make(0.9, 0.9, -1.0), kInvalidArgument, "epsilon");
}

}  // namespace
}  // namespace tutti
