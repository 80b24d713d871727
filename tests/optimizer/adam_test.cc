// Adam against plain loops in double, and with known numbers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adam.h"

#include <algorithm>
#include <cmath>

#include "tests/optimizer/optimizer_helpers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

std::vector<double> adam_by_hand(std::vector<double> w,
                                 const std::vector<std::vector<double>>& steps,
                                 const AdamOptions& options) {
  std::vector<double> m(w.size(), 0.0), v(w.size(), 0.0), v_hat(w.size(), 0.0);
  double beta_1_power = 1.0, beta_2_power = 1.0;
  for (const auto& g : steps) {
    beta_1_power *= options.beta_1;
    beta_2_power *= options.beta_2;
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = options.beta_1 * m[i] + (1.0 - options.beta_1) * g[i];
      v[i] = options.beta_2 * v[i] + (1.0 - options.beta_2) * g[i] * g[i];
      v_hat[i] = std::max(v_hat[i], v[i]);
      const double second = options.amsgrad ? v_hat[i] : v[i];
      const double alpha =
          options.learning_rate.constant * std::sqrt(1.0 - beta_2_power) / (1.0 - beta_1_power);
      w[i] -= alpha * m[i] / (std::sqrt(second) + options.epsilon);
    }
  }
  return w;
}

TEST(AdamTest, FollowsKerassRuleOver20Steps) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.0, 1e-3};
  const auto steps = gradients_of_steps(20, start.size());
  std::vector<AdamOptions> cases(3);
  cases[1] = {.learning_rate = 0.05, .beta_1 = 0.8, .beta_2 = 0.95, .epsilon = 1e-4};
  cases[2] = {.learning_rate = 0.1, .amsgrad = true};
  for (const AdamOptions& options : cases) {
    Adam optimizer(std::vector{variable(doubles(start), "w")}, options);
    expect_near_all(weights_after(optimizer, steps), adam_by_hand(start, steps, options), 1e-13);
  }
}

TEST(AdamTest, AmsgradDiffersOnceTheGradientShrinks) {
  const std::vector<std::vector<double>> steps = {{10.0}, {0.1}, {0.1}, {0.1}};
  const AdamOptions plain{.learning_rate = 0.1, .beta_2 = 0.5};
  AdamOptions with_max = plain;
  with_max.amsgrad = true;
  Adam a(std::vector{variable(doubles({0.0}), "a")}, plain);
  Adam b(std::vector{variable(doubles({0.0}), "b")}, with_max);
  const double without = weights_after(a, steps)[0];
  const double with = weights_after(b, steps)[0];
  EXPECT_GT(std::abs(without - with), 1e-3);
  EXPECT_NEAR(with, adam_by_hand({0.0}, steps, with_max)[0], 1e-14);
}

TEST(AdamTest, TheFirstStepHasTheSizeOfTheRate) {
  // m / sqrt(v) is the gradient's sign after the bias correction: w moves by lr whatever g is.
  const std::vector<std::vector<double>> one_step = {{1e3, -1e-2, 5.0}};
  Adam optimizer(std::vector{variable(doubles({0.0, 0.0, 0.0}), "w")});
  expect_near_all(weights_after(optimizer, one_step), {-0.001, 0.001, -0.001}, 1e-6);
}

TEST(AdamTest, DefaultsAndSlotsAreKerass) {
  const Adam optimizer(std::vector{variable(doubles({0.0}), "w")});
  EXPECT_EQ(optimizer.learning_rate(), 0.001);
  std::vector<std::string> names;
  for (const Variable& state : optimizer.state_variables()) names.push_back(state.name());
  EXPECT_EQ(names, (std::vector<std::string>{"adam/iteration", "adam/learning_rate",
                                             "adam/w/momentum", "adam/w/velocity"}));
  EXPECT_EQ(AdamRule({.amsgrad = true}).slots()[2].name, "velocity_hat");
  EXPECT_FALSE(AdamRule().skips_zero_gradient());  // momentum goes on without a gradient
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
  expect_error(kInvalid, {"adam", "beta_1", "[0, 1)"}, [&] { make(1.0, 0.9, 1e-7); });
  expect_error(kInvalid, {"beta_2"}, [&] { make(0.9, -0.1, 1e-7); });
  expect_error(kInvalid, {"epsilon"}, [&] { make(0.9, 0.9, -1.0); });
}

}  // namespace
}  // namespace tutti
