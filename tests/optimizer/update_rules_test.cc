// Tests update rules: comparison with published values and plain loops, descriptions of rules, and
// the properties that every named optimizer must have.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "optimizer/optimizer_state.h"
#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/optimizer/update_rule_spec.h"

namespace tutti::testing::update_rules_test {

// Keras multiplies the gradient by the rate before adding it to the velocity; PyTorch multiplies
// the velocity afterwards. The results differ if the rate changes.
TEST(SgdTest, MomentumWithChangingRateMatchesKeras) {
  // Two steps with gradient 1, at rates 0.1 and 0.01. The velocity is -0.1, then 0.9 * -0.1 - 0.01.
  for (const bool nesterov : {false, true}) {
    Sgd optimizer(std::vector{variable(doubles({0.0}), "w")},
                  {.momentum = 0.9, .nesterov = nesterov});
    const double expected = nesterov ? (0.9 * -0.1 - 0.1) + (0.9 * -0.1 - 0.01) : -0.1 - 0.1;
    EXPECT_NEAR(weights_after(optimizer, {{1.0}, {1.0}}, {0.1, 0.01})[0], expected, 1e-15);
  }
}

TEST(SgdTest, ComputesInFloat32AndRejectsInvalidMomentum) {
  Sgd optimizer(std::vector{variable(floats({1.0f, -3.0f}), "w")}, {.learning_rate = 0.1});
  const Gradient gradient(floats({0.3f, 0.7f}));
  optimizer.apply_gradients({&gradient, 1});
  const Tensor after = optimizer.variables()[0].value();
  EXPECT_EQ(after.host_span<float>()[0], 1.0f - 0.1f * 0.3f);
  EXPECT_EQ(after.host_span<float>()[1], -3.0f - 0.1f * 0.7f);
  for (const double momentum : {-0.1, 1.5}) {
    EXPECT_INVALID(Sgd(std::vector{variable(doubles({0.0}), "w")}, {.momentum = momentum}), "sgd",
                   "[0, 1]", concat(momentum));
  }
}

TEST(UpdateRules, OnlyRulesWithoutMomentumSkipZeroGradients) {
  EXPECT_TRUE(SgdRule().skips_zero_gradient());
  EXPECT_FALSE(SgdRule(0.9).skips_zero_gradient());
  EXPECT_FALSE(
      AdamRule().skips_zero_gradient());  // Adam's momentum moves weights even without a gradient
  EXPECT_EQ(AdamRule({.amsgrad = true}).slots()[2].name, "velocity_hat");
}

TEST(AdamTest, RejectsInvalidBetasAndEpsilon) {
  const auto make = [](double beta_1, double beta_2, double epsilon) {
    Adam(std::vector{variable(doubles({0.0}), "w")},
         {.beta_1 = beta_1, .beta_2 = beta_2, .epsilon = epsilon});
  };
  EXPECT_INVALID(make(1.0, 0.9, 1e-7), "adam", "beta_1", "[0, 1)");
  EXPECT_INVALID(make(0.9, -0.1, 1e-7), "beta_2");
  EXPECT_INVALID(make(0.9, 0.9, -1.0), "epsilon");
}

using Steps = std::vector<std::vector<double>>;

const std::vector<double> kRuleStart = {0.5, -1.0, 2.0, 0.0, 1e-3};

TEST(AdaptiveRules, DefaultsMatchKeras) {
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

TEST(AdaptiveRules, AdamWAcceptsScheduleAndRequiresDecay) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_EQ(AdamW(w, 0.25).learning_rate(), 0.25);
  EXPECT_EQ(AdamW(w, ExponentialDecay({.initial_learning_rate = 0.5})).learning_rate(), 0.5);
  EXPECT_INVALID(AdamW(w, {.weight_decay = std::nullopt}), "adamw", "weight_decay", "Adam");
}

// As in Keras, a gradient is multiplied by its step's learning rate, then added to the momentum.
TEST(AdaptiveRules, RmspropMomentumMatchesFormulaWhenRateChanges) {
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
    expect_near(weights_after(optimizer, steps, rates), expected, 1e-12);
  }
}

TEST(AdaptiveRules, FtrlL1GivesExactZerosAndLionPropagatesNan) {
  Ftrl optimizer(std::vector{variable(doubles({1.0, 1.0}), "w")},
                 {.learning_rate = 0.1, .l1_regularization_strength = 5.0});
  const auto weights = weights_after(optimizer, Steps(10, {0.1, -3.0}));
  EXPECT_EQ(weights[0], 0.0);
  EXPECT_GT(weights[1], 0.0);
  Lion lion(std::vector{variable(doubles({1.0, 1.0}), "w")});
  const auto passed = weights_after(lion, {{std::nan(""), 0.0}});
  EXPECT_TRUE(std::isnan(passed[0]));
  EXPECT_EQ(passed[1], 1.0);  // the sign of 0 is 0, so the weight is unchanged
}

TEST(AdaptiveRules, RejectInvalidHyperparameters) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_INVALID(Rmsprop(w, {.rho = 1.5}), "rmsprop", "rho", "1.5");
  EXPECT_INVALID(Adagrad(w, {.initial_accumulator_value = -1}), "adagrad", "-1");
  EXPECT_INVALID(Adadelta(w, {.epsilon = 0.0}), "adadelta", "epsilon");
  EXPECT_INVALID(Nadam(w, {.beta_1 = 1.0}), "nadam", "beta_1");
  EXPECT_INVALID(Ftrl(w, {.learning_rate_power = 0.5}), "ftrl", "learning_rate_power");
  EXPECT_INVALID(Ftrl(w, {.l1_regularization_strength = -2}), "ftrl", "-2");
  EXPECT_INVALID(Lion(w, {.beta_1 = 0.0}), "lion", "beta_1", "(0, 1]");
}

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
    expect_near(weights_after(optimizer, steps), lamb_by_hand(start, steps, options), 1e-12);
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
  expect_near(weights_after(optimizer, steps), w, 1e-12);
}

TEST(TrustRatio, IsOneIfWeightsOrGradientAreZero) {
  Lars lars(std::vector{variable(doubles({0.0, 0.0}), "w")},
            {.learning_rate = 0.5, .momentum = 0.0});
  expect_near(weights_after(lars, {{1.0, -2.0}}), {-0.5, 1.0}, 1e-15);
  Lamb lamb(std::vector{variable(doubles({0.0, 0.0}), "w")}, {.learning_rate = 0.5});
  expect_near(weights_after(lamb, {{1.0, -2.0}}), {-0.5, 0.5}, 1e-6);
  Lamb without(std::vector{variable(doubles({3.0}), "w")}, {.weight_decay = 0.0});
  expect_near(weights_after(without, {{0.0}}), {3.0}, 0.0);
}

TEST(TrustRatio, IsComputedPerVariable) {
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

/// Rule that applies w -= direction / |direction|, and checks the arguments of apply().
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

/// Rule that declares the use of norms, but does not override direct().
class HalfARule final : public UpdateRule {
 public:
  std::string_view name() const override { return "half"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  bool uses_norms() const override { return true; }
  void apply(const UpdateArgs&) const override {}
};

TEST(TrustRatio, SupportsUserDefinedRules) {
  Optimizer optimizer(std::vector{variable(doubles({5.0, 12.0}), "w")},
                      std::make_unique<NormalizedRule>(), {.loss_scale_factor = 16.0});
  expect_near(weights_after(optimizer, {{3.0, 4.0}}), {5.0 - 0.6, 12.0 - 0.8}, 1e-15);
  Optimizer half(std::vector{variable(doubles({1.0}), "w")}, std::make_unique<HalfARule>(), {});
  EXPECT_ERROR(weights_after(half, {{1.0}}), kInternal, "half", "direct()");
}

TEST(TrustRatio, RejectsInvalidHyperparameters) {
  const std::vector<Variable> w{variable(doubles({0.0}), "w")};
  EXPECT_INVALID(Lars(w, {.trust_coefficient = 0}), "lars", "trust_coefficient");
  EXPECT_INVALID(Lamb(w, {.beta_2 = 1.0}), "lamb", "beta_2");
  EXPECT_INVALID(Lamb(w, {.weight_decay = -1.0}), "lamb", "weight_decay", "-1");
}

/// Consecutive elements of one variable and its slots, in the form in which an update rule receives
/// them.
template <class T>
struct Elements {
  std::vector<T> w, g, direction;
  std::vector<std::vector<T>> slots;

  Elements(const UpdateRule& rule, std::size_t count) : w(count), g(count), direction(count) {
    const RandomStream stream(RandomKey{8, kUserPurpose});
    std::uint64_t n = 0;
    for (T& each : w) each = static_cast<T>(stream.normal(n++));
    for (T& each : g) each = static_cast<T>(stream.normal(n++));
    slots.resize(rule.slots().size(), std::vector<T>(count));
    for (auto& slot : slots) {  // means of squares must exceed squared means
      for (T& each : slot) each = static_cast<T>(0.5 + 0.2 * stream.uniform64(n++));
    }
  }

  UpdateArgs part(std::size_t first, std::size_t count, std::vector<void*>& pointers) {
    pointers.clear();
    for (auto& slot : slots) pointers.push_back(&slot[first]);
    return {dtype_of<T>(),
            count,
            &w[first],
            pointers,
            &g[first],
            {.learning_rate = 0.05, .iteration = 6, .gradient_scale = 0.5, .weight_decay = 0.02}};
  }

  void apply(const UpdateRule& rule, const std::vector<std::size_t>& ends) {
    std::vector<void*> pointers;
    std::size_t first = 0;
    for (const std::size_t end : ends) {
      UpdateArgs args = part(first, end - first, pointers);
      if (rule.uses_norms()) {
        rule.direct(args, &direction[first]);
        args.gradient_data = &direction[first];
        args.scalars.weight_norm =
            3.25;  // norm of all weights, even if `args` has only some of them
        args.scalars.direction_norm = 1.75;
      }
      rule.apply(args);
      first = end;
    }
  }
};

/// Returns the weights and slots after one update with the rule.
std::vector<std::vector<float>> after_an_update(const UpdateRule& rule) {
  Elements<float> elements(rule, 37);
  elements.apply(rule, {37});
  elements.slots.push_back(elements.w);
  return elements.slots;
}

void expect_same_made_again(const UpdateRule& rule) {
  const std::string text = describe_update_rule(rule);
  SCOPED_TRACE(text);
  const auto made = make_update_rule(text);
  EXPECT_EQ(made->name(), rule.name());
  EXPECT_EQ(made->decays_weights(), rule.decays_weights());
  EXPECT_EQ(describe_update_rule(*made), text);
  EXPECT_EQ(after_an_update(*made), after_an_update(rule));
}

TEST(UpdateRuleSpec, RecreatedOptimizerRulesAreBitIdentical) {
  const Variable variable(Tensor::zeros({2}));
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer(name, std::span(&variable, 1));
    expect_same_made_again(optimizer->rule());
  }
}

TEST(UpdateRuleSpec, PreservesNonDefaultHyperparameters) {
  const double odd = std::nextafter(0.1, 1.0);
  expect_same_made_again(SgdRule(odd));
  expect_same_made_again(SgdRule::nesterov(odd));
  expect_same_made_again(AdamRule({odd, 0.95, 1e-3, true}));
  expect_same_made_again(NadamRule({odd, 0.95, 1e-3}));
  expect_same_made_again(AdagradRule({odd, 1e-300}));
  expect_same_made_again(AdadeltaRule({odd, 1e-3}));
  expect_same_made_again(RmspropRule({odd, 0.3, 1e-3, true}));
  expect_same_made_again(FtrlRule({-odd, 0.2, 0.01, 0.02, 0.03, 0.04}));
  expect_same_made_again(LambRule({odd, 0.95, 1e-3}));
  expect_same_made_again(LarsRule({odd, 0.01, 1e-3}));
  expect_same_made_again(LionRule({odd, 0.95}));
}

TEST(UpdateRuleSpec, RecreatesWrappingRules) {
  expect_same_made_again(internal::MovingAverageRule("test", {.momentum = 0.7}));
  expect_same_made_again(
      internal::MovingAverageRule("test", {.momentum = 0.7, .overwrite_frequency = 2}));
  const AdamRule adam;
  const internal::DecoupledWeightDecayRule decaying(adam);
  expect_same_made_again(decaying);
  EXPECT_NE(after_an_update(decaying), after_an_update(adam));
}

TEST(UpdateRuleSpec, RefusesInvalidDescriptions) {
  EXPECT_ERROR(make_update_rule(R"({"rule":"sdg"})"), kNotFound, "'sdg'", "adadelta", "sgd",
               "register_update_rule");
  EXPECT_INVALID(make_update_rule(R"({"rule":"sgd","momentum":0.5})"), "nesterov");
  EXPECT_INVALID(make_update_rule(R"({"rule":"lion","beta_1":0.5,"beta_2":0.5,"beta_3":1})"),
                 "beta_3");
  EXPECT_INVALID(make_update_rule(R"({"rule":"lion","beta_1":7,"beta_2":0.5})"), "beta_1");
  EXPECT_INVALID(make_update_rule("sgd"), "update rule");
  EXPECT_INVALID(
      make_update_rule(R"({"rule":"decoupled_weight_decay","then":{"rule":"lamb","beta_1":0.9,)"
                       R"("beta_2":0.9,"epsilon":0.1}})"),
      "norms");
  const FtrlRule infinite({.l1_regularization_strength = std::numeric_limits<double>::infinity()});
  EXPECT_INVALID(describe_update_rule(infinite), "l1_regularization_strength");
}

class RuleOfMine final : public UpdateRule {
 public:
  explicit RuleOfMine(double factor) : factor_(factor) {}
  std::string_view name() const override { return "rule_of_mine"; }
  Json describe() const override { return Json::Object{{"rule", name()}, {"factor", factor_}}; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs& args) const override {
    for (float& w : args.weights<float>()) w *= static_cast<float>(factor_);
  }

 private:
  double factor_;
};

class SilentRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "silent"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs&) const override {}
};

TEST(UpdateRuleSpec, AcceptsRegisteredUserRules) {
  const auto factory = [](const Json& d) {
    return std::make_shared<RuleOfMine>(d.at("factor").as_double());
  };
  register_update_rule("rule_of_mine", factory);
  EXPECT_EQ(registered_update_rules().back(), "rule_of_mine");
  expect_same_made_again(RuleOfMine(1.0 / 3.0));
  EXPECT_ERROR(register_update_rule("rule_of_mine", factory), kAlreadyExists);
  EXPECT_ERROR(describe_update_rule(SilentRule()), kUnimplemented, "'silent'",
               "register_update_rule");
}

template <class T>
void expect_bits_of_any_partition(const UpdateRule& rule) {
  constexpr std::size_t kCount = 1003;
  Elements<T> whole(rule, kCount), parts(rule, kCount);
  whole.apply(rule, {kCount});
  parts.apply(rule, {1, 4, 501, 509, 1002, kCount});
  EXPECT_EQ(whole.w, parts.w) << rule.name();
  EXPECT_EQ(whole.slots, parts.slots) << rule.name();
  EXPECT_NE(whole.w, (Elements<T>(rule, kCount).w)) << rule.name();
}

class EveryOptimizer : public TestWithParam<std::string> {
 protected:
  std::unique_ptr<Optimizer> make(const Variable& variable) const {
    return make_optimizer(GetParam(), std::vector{variable});
  }
};

TEST_P(EveryOptimizer, AnyPartitionOfWeightsGivesSameBits) {
  const auto optimizer = make(variable(doubles({1.0}), "w"));
  expect_bits_of_any_partition<float>(optimizer->rule());
  expect_bits_of_any_partition<double>(optimizer->rule());
}

TEST_P(EveryOptimizer, Float32ResultsAreCloseToFloat64) {
  const std::vector<double> start = {0.5, -1.0, 2.0, 0.25, 1e-3};
  std::vector<float> start_32(start.begin(), start.end());
  const auto in_64 = make(variable(doubles(start), "w"));
  const auto in_32 = make(variable(floats(start_32), "w"));
  const auto steps = gradients_of_steps(20, start.size());
  const auto expected = weights_after(*in_64, steps);
  for (const auto& step : steps) {
    const Gradient gradient(floats(std::vector<float>(step.begin(), step.end())));
    in_32->apply_gradients({&gradient, 1});
  }
  expect_near(in_32->variables()[0].value().to_doubles(), expected, 2e-5);
}

TEST_P(EveryOptimizer, SparseGradientsMatchDenseBitwise) {
  expect_sparse_equals_dense([this](const Variable& variable) { return make(variable); });
}

TEST_P(EveryOptimizer, StateResumesFromCheckpoint) {
  const auto steps = gradients_of_steps(6, 3);
  const auto first = decltype(steps)(steps.begin(), steps.begin() + 3);
  const auto rest = decltype(steps)(steps.begin() + 3, steps.end());
  const auto whole = make(variable(doubles({1, 2, 3}), "w"));
  const auto expected = weights_after(*whole, steps);
  const auto before = make(variable(doubles({1, 2, 3}), "w"));
  weights_after(*before, first);
  const auto after = make(variable(doubles({0, 0, 0}), "w"));
  copy_state(*before, *after);
  EXPECT_EQ(weights_after(*after, rest), expected);
}

TEST_P(EveryOptimizer, StateNamesUseOptimizerName) {
  const auto optimizer = make(variable(doubles({1.0}), "w"));
  EXPECT_EQ(optimizer->name(), GetParam());
  const auto slots = optimizer->rule().slots();
  const auto state = optimizer->state_variables();
  ASSERT_EQ(state.size(), 2 + slots.size());
  EXPECT_EQ(state[0].name(), GetParam() + "/iteration");
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(state[2 + i].name(), GetParam() + "/w/" + slots[i].name);
    EXPECT_EQ(state[2 + i].value().item_double(), slots[i].initial_value);
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EveryOptimizer, ValuesIn(optimizer_names()),
                         [](const auto& info) { return info.param; });

TEST(OptimizerNames, RatesAndSlotsMatchKeras) {
  const std::map<std::string, double> rates = {
      {"adadelta", 0.001}, {"adagrad", 0.001}, {"adam", 0.001}, {"adamw", 0.001},
      {"ftrl", 0.001},     {"lamb", 0.001},    {"lars", 0.1},   {"lion", 0.001},
      {"nadam", 0.001},    {"rmsprop", 0.001}, {"sgd", 0.01}};
  const std::map<std::string, std::string> slots = {
      {"adadelta", "accumulated_grad accumulated_delta_var "},
      {"adagrad", "accumulator "},
      {"adam", "momentum velocity "},
      {"adamw", "momentum velocity "},
      {"ftrl", "accumulator linear "},
      {"lamb", "momentum velocity "},
      {"lars", "momentum "},
      {"lion", "momentum "},
      {"nadam", "momentum velocity "},
      {"rmsprop", "velocity "},
      {"sgd", ""}};
  ASSERT_EQ(optimizer_names().size(), rates.size());
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer(name, std::vector{variable(doubles({1.0}), "w")});
    EXPECT_EQ(optimizer->learning_rate(), rates.at(name)) << name;
    std::string names;
    for (const SlotSpec& slot : optimizer->rule().slots()) names += slot.name + " ";
    EXPECT_EQ(names, slots.at(name)) << name;
  }
}

}  // namespace tutti::testing::update_rules_test
