// Update rules as values: described and made again they give the same bits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/update_rule_spec.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "optimizer/optimizer_state.h"
#include "tests/optimizer/optimizer_helpers.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {
namespace {
namespace rule_spec {

/// Weights and slots after five updates with random gradients, by the rule alone.
std::vector<float> after_five_updates(const UpdateRule& rule) {
  constexpr std::size_t kCount = 37;
  const RandomStream stream(RandomKey{15, kUserPurpose});
  std::uint64_t n = 0;
  std::vector<std::vector<float>> slots;
  for (const SlotSpec& slot : rule.slots()) {
    slots.emplace_back(kCount, static_cast<float>(slot.initial_value));
  }
  std::vector<float> w(kCount), g(kCount), direction(kCount);
  for (float& each : w) each = static_cast<float>(stream.normal(n++));
  for (int step = 0; step < 5; ++step) {
    for (float& each : g) each = static_cast<float>(stream.normal(n++));
    std::vector<void*> pointers;
    for (auto& slot : slots) pointers.push_back(slot.data());
    UpdateArgs args{DType::kFloat32,
                    kCount,
                    w.data(),
                    pointers,
                    g.data(),
                    {.learning_rate = 0.05,
                     .iteration = step,
                     .gradient_scale = 0.5,
                     .weight_decay = 0.02,
                     .weight_norm = 3.25,
                     .direction_norm = 1.75}};
    if (rule.uses_norms()) {
      rule.direct(args, direction.data());
      args.gradient_data = direction.data();
    }
    rule.apply(args);
  }
  for (const auto& slot : slots) w.insert(w.end(), slot.begin(), slot.end());
  return w;
}

void expect_same_made_again(const UpdateRule& rule) {
  const std::string text = describe_update_rule(rule);
  SCOPED_TRACE(text);
  const auto made = make_update_rule(text);
  EXPECT_EQ(made->name(), rule.name());
  EXPECT_EQ(made->decays_weights(), rule.decays_weights());
  EXPECT_EQ(describe_update_rule(*made), text);
  const std::vector<float> expected = after_five_updates(rule), got = after_five_updates(*made);
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
}

TEST(UpdateRuleSpec, EveryOptimizersRuleGivesTheSameBitsWhenMadeAgain) {
  const Variable variable(Tensor::zeros({2}));
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer(name, std::span(&variable, 1));
    expect_same_made_again(optimizer->rule());
  }
}

TEST(UpdateRuleSpec, KeepsEveryNumberThatIsNotTheDefault) {
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

TEST(UpdateRuleSpec, KnowsTheRulesAroundARule) {
  expect_same_made_again(internal::MovingAverageRule("test", {.momentum = 0.7}));
  expect_same_made_again(
      internal::MovingAverageRule("test", {.momentum = 0.7, .overwrite_frequency = 2}));
  const AdamRule adam;
  const internal::DecoupledWeightDecayRule decaying(adam);
  expect_same_made_again(decaying);
  EXPECT_NE(after_five_updates(decaying), after_five_updates(adam));
}

TEST(UpdateRuleSpec, RefusesWhatIsNoDescription) {
  EXPECT_ERROR(make_update_rule(R"({"rule":"sdg"})"), kNotFound, "'sdg'", "adadelta", "sgd",
               "register_update_rule");
  EXPECT_ERROR(make_update_rule(R"({"rule":"sgd","momentum":0.5})"), kInvalidArgument, "nesterov");
  EXPECT_ERROR(make_update_rule(R"({"rule":"lion","beta_1":0.5,"beta_2":0.5,"beta_3":1})"),
               kInvalidArgument, "beta_3");
  EXPECT_ERROR(make_update_rule(R"({"rule":"lion","beta_1":7,"beta_2":0.5})"), kInvalidArgument,
               "beta_1");
  EXPECT_ERROR(make_update_rule("sgd"), kInvalidArgument, "update rule");
  EXPECT_ERROR(
      make_update_rule(R"({"rule":"decoupled_weight_decay","then":{"rule":"lamb","beta_1":0.9,)"
                       R"("beta_2":0.9,"epsilon":0.1}})"),
      kInvalidArgument, "norms");
  const FtrlRule infinite({.l1_regularization_strength = std::numeric_limits<double>::infinity()});
  EXPECT_ERROR(describe_update_rule(infinite), kInvalidArgument, "l1_regularization_strength");
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

TEST(UpdateRuleSpec, TakesRulesOfTheProgram) {
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

}  // namespace rule_spec
}  // namespace
}  // namespace tutti
