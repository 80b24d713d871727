// LAMB and LARS: rules with norms, against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>

#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {

using namespace optimizer_tests;

double norm_by_hand(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double trust_by_hand(double of_weights, double of_step) {
  return of_weights > 0 && of_step > 0 ? of_weights / of_step : 1.0;
}

std::vector<double> lamb_by_hand(std::vector<double> w,
                                 const std::vector<std::vector<double>>& steps,
                                 const LambOptions& options) {
  std::vector<double> m(w.size()), v(w.size()), r(w.size());
  int t = 0;
  for (const auto& g : steps) {
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = options.beta_1 * m[i] + (1 - options.beta_1) * g[i];
      v[i] = options.beta_2 * v[i] + (1 - options.beta_2) * g[i] * g[i];
      const double mean = m[i] / (1 - std::pow(options.beta_1, t));
      const double square = v[i] / (1 - std::pow(options.beta_2, t));
      r[i] = mean / (std::sqrt(square) + options.epsilon) + *options.weight_decay * w[i];
    }
    const double rate =
        options.learning_rate.constant * trust_by_hand(norm_by_hand(w), norm_by_hand(r));
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * r[i];
  }
  return w;
}

TEST(TrustRatio, LambFollowsThePaperOver20Steps) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.0, 1e-3};
  const auto steps = gradients_of_steps(20, start.size());
  for (const double decay : {0.0, 0.01, 0.5}) {
    const LambOptions options{.learning_rate = 0.02, .weight_decay = decay};
    Lamb optimizer(std::vector{variable(doubles(start), "w")}, options);
    expect_near_all(weights_after(optimizer, steps), lamb_by_hand(start, steps, options), 1e-12);
  }
}

TEST(TrustRatio, LarsFollowsThePaperOver20Steps) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.0, 1e-3};
  const auto steps = gradients_of_steps(20, start.size());
  const double rate = 2.0, eta = 0.02, decay = 0.1, momentum = 0.7;
  std::vector<double> w = start, m(start.size());
  for (const auto& g : steps) {
    const double of_w = norm_by_hand(w), of_g = norm_by_hand(g);
    const double local = eta * of_w / (of_g + decay * of_w);
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = momentum * m[i] + rate * local * (g[i] + decay * w[i]);
      w[i] -= m[i];
    }
  }
  Lars optimizer(std::vector{variable(doubles(start), "w")}, {.learning_rate = rate,
                                                              .momentum = momentum,
                                                              .trust_coefficient = eta,
                                                              .weight_decay = decay});
  expect_near_all(weights_after(optimizer, steps), w, 1e-12);
}

TEST(TrustRatio, IsOneWithoutWeightsOrGradient) {
  Lars lars(std::vector{variable(doubles({0.0, 0.0}), "w")},
            {.learning_rate = 0.5, .momentum = 0.0});
  expect_near_all(weights_after(lars, {{1.0, -2.0}}), {-0.5, 1.0}, 1e-15);
  Lamb lamb(std::vector{variable(doubles({0.0, 0.0}), "w")}, {.learning_rate = 0.5});
  expect_near_all(weights_after(lamb, {{1.0, -2.0}}), {-0.5, 0.5}, 1e-6);
  Lamb without(std::vector{variable(doubles({3.0}), "w")}, {.weight_decay = 0.0});
  expect_near_all(weights_after(without, {{0.0}}), {3.0}, 0.0);
}

TEST(TrustRatio, EachVariableHasItsOwn) {
  const Variable large = variable(doubles({100.0}), "large"),
                 little = variable(doubles({1.0}), "s");
  Lamb optimizer(std::vector{large, little}, {.learning_rate = 0.1, .weight_decay = 0.0});
  const std::vector<Gradient> gradients = {doubles({1.0}), doubles({1.0})};
  optimizer.apply_gradients(gradients);
  EXPECT_NEAR(large.value().item_double(), 90.0, 1e-9);
  EXPECT_NEAR(little.value().item_double(), 0.9, 1e-9);
}

TEST(TrustRatio, ExcludedVariablesDoNotDecay) {
  const Variable kernel = variable(doubles({1.0}), "kernel"),
                 bias = variable(doubles({1.0}), "bias");
  Lars optimizer(
      std::vector{kernel, bias},
      {.learning_rate = 1.0, .momentum = 0.0, .trust_coefficient = 0.1, .weight_decay = 1.0});
  optimizer.exclude_from_weight_decay({"bias"});
  const std::vector<Gradient> gradients = {doubles({1.0}), doubles({1.0})};
  optimizer.apply_gradients(gradients);
  EXPECT_NEAR(kernel.value().item_double(), 1.0 - 0.05 * 2.0, 1e-15);
  EXPECT_NEAR(bias.value().item_double(), 1.0 - 0.1, 1e-15);
}

/// w -= direction / |direction|, with what apply() was told beside it.
class NormalizedRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "normalized"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  bool uses_norms() const override { return true; }
  void direct(const UpdateArgs& args, void* direction) const override {
    for (std::size_t i = 0; i < args.count; ++i) {
      static_cast<double*>(direction)[i] = args.gradient<double>()[i] * args.scalars.gradient_scale;
    }
  }
  void apply(const UpdateArgs& args) const override {
    EXPECT_EQ(args.scalars.gradient_scale, 1.0);
    EXPECT_EQ(args.scalars.weight_norm, 13.0);
    for (std::size_t i = 0; i < args.count; ++i) {
      args.weights<double>()[i] -= args.gradient<double>()[i] / args.scalars.direction_norm;
    }
  }
};

/// Says that it uses norms, and has no direct().
class HalfARule final : public UpdateRule {
 public:
  std::string_view name() const override { return "half"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  bool uses_norms() const override { return true; }
  void apply(const UpdateArgs&) const override {}
};

TEST(TrustRatio, IsOpenToRulesOfTheUser) {
  Optimizer optimizer(std::vector{variable(doubles({5.0, 12.0}), "w")},
                      std::make_unique<NormalizedRule>(), {.loss_scale_factor = 16.0});
  expect_near_all(weights_after(optimizer, {{3.0, 4.0}}), {5.0 - 0.6, 12.0 - 0.8}, 1e-15);
  Optimizer half(std::vector{variable(doubles({1.0}), "w")}, std::make_unique<HalfARule>(), {});
  EXPECT_ERROR(weights_after(half, {{1.0}}), kInternal, "half", "direct()");
}

TEST(TrustRatio, RefuseHyperparametersThatMakeNoSense) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_ERROR(Lars(w, {.trust_coefficient = 0}), kInvalidArgument, "lars", "trust_coefficient");
  EXPECT_ERROR(Lamb(w, {.beta_2 = 1.0}), kInvalidArgument, "lamb", "beta_2");
  EXPECT_ERROR(Lamb(w, {.weight_decay = -1.0}), kInvalidArgument, "lamb", "weight_decay", "-1");
}

}  // namespace
}  // namespace tutti
