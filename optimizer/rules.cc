// Built-in update rules: hyperparameter ranges, slots and formula constants; weight decay before a
// rule, and moving averages after it.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/optimizer_state.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/names.h"
#include "tensor/cpu/update_rules.h"
#include "tensor/device_backend.h"
#include "tutti/core/fields.h"
#include "tutti/core/json.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti {

void FormulaRule::apply(const UpdateArgs& args) const { update(args, nullptr); }

void FormulaRule::direct(const UpdateArgs& args, void* direction) const {
  if (!uses_norms())
    fail(ErrorCode::kInternal, name(),
         ": expected a rule that uses norms; other rules have no update direction");
  if (args.count > 0) update(args, direction);
}

void FormulaRule::update(const UpdateArgs& args, void* direction) const {
  const std::optional<DeviceRule> rule = device_rule(args.scalars);
  if (!rule) fail(ErrorCode::kInternal, name(), ": a FormulaRule needs a device_rule()");
  internal::update_on_host(name(), *rule, args, direction);
}

namespace {

/// Properties of a rule that do not depend on its hyperparameters.
struct Formula {
  std::string_view name;
  DeviceRuleId id;
  bool uses_norms = false;  // true for LAMB and LARS, which also decay weights themselves
};

/// Constants of a DeviceRule after the rate, the gradient scale and the weight decay.
using Numbers = std::array<double, DeviceRule::kNumConstants - 3>;
using Slots = std::vector<SlotSpec>;

bool in_unit(double value) { return value >= 0.0 && value <= 1.0; }

// Adadelta (Zeiler, "Adadelta: an adaptive learning rate method", 2012).

Formula formula_of(const AdadeltaHyperparameters&) { return {"adadelta", DeviceRuleId::kAdadelta}; }

void check(const AdadeltaHyperparameters& hyper) {
  internal::require(in_unit(hyper.rho) && hyper.epsilon > 0.0,
                    "adadelta: expected rho in [0, 1] and a positive epsilon, got ", hyper.rho,
                    " and ", hyper.epsilon);
}

Slots slots_of(const AdadeltaHyperparameters&) {
  return {{"accumulated_grad", 0.0}, {"accumulated_delta_var", 0.0}};
}

Numbers numbers_of(const AdadeltaHyperparameters& hyper, const UpdateScalars&) {
  return {hyper.rho, 1.0 - hyper.rho, hyper.epsilon};
}

// Adagrad (Duchi et al., "Adaptive subgradient methods", JMLR 2011).

Formula formula_of(const AdagradHyperparameters&) { return {"adagrad", DeviceRuleId::kAdagrad}; }

void check(const AdagradHyperparameters& hyper) {
  internal::require(hyper.initial_accumulator_value >= 0.0 && hyper.epsilon >= 0.0,
                    "adagrad: expected initial_accumulator_value and epsilon >= 0, got ",
                    hyper.initial_accumulator_value, " and ", hyper.epsilon);
}

Slots slots_of(const AdagradHyperparameters& hyper) {
  return {{"accumulator", hyper.initial_accumulator_value}};
}

Numbers numbers_of(const AdagradHyperparameters& hyper, const UpdateScalars&) {
  return {hyper.epsilon};
}

// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).

/// Checks the hyperparameters of Adam and its variants.
template <class Hyperparameters>
void check_moments(const char* who, const Hyperparameters& hyper) {
  const auto is_share = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  internal::require(is_share(hyper.beta_1) && is_share(hyper.beta_2) && hyper.epsilon >= 0.0, who,
                    ": expected beta_1 and beta_2 in [0, 1) and epsilon >= 0, got ", hyper.beta_1,
                    ", ", hyper.beta_2, " and ", hyper.epsilon);
}

Formula formula_of(const AdamHyperparameters&) { return {"adam", DeviceRuleId::kAdam}; }
void check(const AdamHyperparameters& hyper) { check_moments("adam", hyper); }

Slots slots_of(const AdamHyperparameters& hyper) {
  Slots slots{{"momentum", 0.0}, {"velocity", 0.0}};
  if (hyper.amsgrad) slots.push_back({"velocity_hat", 0.0});
  return slots;
}

Numbers numbers_of(const AdamHyperparameters& hyper, const UpdateScalars& scalars) {
  // The step's learning rate includes the bias corrections.
  const double t = static_cast<double>(scalars.iteration + 1);
  const double rate = scalars.learning_rate * std::sqrt(1.0 - std::pow(hyper.beta_2, t)) /
                      (1.0 - std::pow(hyper.beta_1, t));
  return {rate, 1.0 - hyper.beta_1, 1.0 - hyper.beta_2, hyper.epsilon};
}

// Nadam (Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016).

/// Returns u(t), the momentum of step t = 1, 2, ...
double momentum_at(double beta_1, double t) { return beta_1 * (1.0 - 0.5 * std::pow(0.96, t)); }

/// Returns u(1) * ... * u(t), recomputed because rules have no state. Factors stop mattering once
/// the product is too small to change 1 - product.
double product_until(double beta_1, std::int64_t t) {
  constexpr double kNegligible = 1e-18;
  double product = 1.0;
  for (std::int64_t i = 1; i <= t && product > kNegligible; ++i) {
    product *= momentum_at(beta_1, static_cast<double>(i));
  }
  return product;
}

Formula formula_of(const NadamHyperparameters&) { return {"nadam", DeviceRuleId::kNadam}; }
void check(const NadamHyperparameters& hyper) { check_moments("nadam", hyper); }
Slots slots_of(const NadamHyperparameters&) { return {{"momentum", 0.0}, {"velocity", 0.0}}; }

/// Returns the factors of the mean, the gradient and the mean square, followed by the
/// hyperparameters.
Numbers numbers_of(const NadamHyperparameters& hyper, const UpdateScalars& scalars) {
  const std::int64_t step = scalars.iteration + 1;
  const double t = static_cast<double>(step);
  const double now = momentum_at(hyper.beta_1, t), next = momentum_at(hyper.beta_1, t + 1.0);
  const double product = product_until(hyper.beta_1, step);
  return {next / (1.0 - product * next),
          (1.0 - now) / (1.0 - product),
          1.0 / (1.0 - std::pow(hyper.beta_2, t)),
          1.0 - hyper.beta_1,
          1.0 - hyper.beta_2,
          hyper.epsilon};
}

// Ftrl (McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013).

Formula formula_of(const FtrlHyperparameters&) { return {"ftrl", DeviceRuleId::kFtrl}; }

void check(const FtrlHyperparameters& hyper) {
  const double smallest =
      std::min({hyper.initial_accumulator_value, hyper.l1_regularization_strength,
                hyper.l2_regularization_strength, hyper.l2_shrinkage_regularization_strength,
                -hyper.learning_rate_power});
  internal::require(
      smallest >= 0.0,
      "ftrl: expected learning_rate_power <= 0, and initial_accumulator_value and regularization "
      "strengths >= 0, got ",
      hyper.learning_rate_power, ", ", hyper.initial_accumulator_value, " and strengths ",
      hyper.l1_regularization_strength, ", ", hyper.l2_regularization_strength, " and ",
      hyper.l2_shrinkage_regularization_strength);
}

Slots slots_of(const FtrlHyperparameters& hyper) {
  return {{"accumulator", hyper.initial_accumulator_value}, {"linear", 0.0}};
}

Numbers numbers_of(const FtrlHyperparameters& hyper, const UpdateScalars& scalars) {
  return {hyper.l1_regularization_strength,
          2.0 * hyper.l2_regularization_strength + hyper.beta / scalars.learning_rate,
          2.0 * hyper.l2_shrinkage_regularization_strength, -hyper.learning_rate_power};
}

// LAMB (You et al., "Large batch optimization for deep learning", ICLR 2020).

Formula formula_of(const LambHyperparameters&) { return {"lamb", DeviceRuleId::kLamb, true}; }
void check(const LambHyperparameters& hyper) { check_moments("lamb", hyper); }
Slots slots_of(const LambHyperparameters&) { return {{"momentum", 0.0}, {"velocity", 0.0}}; }

Numbers numbers_of(const LambHyperparameters& hyper, const UpdateScalars& scalars) {
  const double t = static_cast<double>(scalars.iteration + 1);
  return {1.0 / (1.0 - std::pow(hyper.beta_1, t)), 1.0 / (1.0 - std::pow(hyper.beta_2, t)),
          1.0 - hyper.beta_1, 1.0 - hyper.beta_2, hyper.epsilon};
}

// LARS (You et al., "Large batch training of convolutional networks", 2017).

Formula formula_of(const LarsHyperparameters&) { return {"lars", DeviceRuleId::kLars, true}; }

void check(const LarsHyperparameters& hyper) {
  const auto [momentum, trust_coefficient, epsilon] = hyper;
  internal::require(
      in_unit(momentum) && trust_coefficient > 0.0 && epsilon >= 0.0,
      "lars: expected momentum in [0, 1], a positive trust_coefficient and epsilon >= 0, "
      "got ",
      momentum, ", ", trust_coefficient, " and ", epsilon);
}

Slots slots_of(const LarsHyperparameters&) { return {{"momentum", 0.0}}; }

Numbers numbers_of(const LarsHyperparameters& hyper, const UpdateScalars&) {
  return {hyper.momentum, hyper.trust_coefficient, hyper.epsilon};
}

// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023).

Formula formula_of(const LionHyperparameters&) { return {"lion", DeviceRuleId::kLion}; }

void check(const LionHyperparameters& hyper) {
  internal::require(in_unit(hyper.beta_1) && hyper.beta_1 > 0.0 && in_unit(hyper.beta_2),
                    "lion: expected beta_1 in (0, 1] and beta_2 in [0, 1], got ", hyper.beta_1,
                    " and ", hyper.beta_2);
}

Slots slots_of(const LionHyperparameters&) { return {{"momentum", 0.0}}; }

Numbers numbers_of(const LionHyperparameters& hyper, const UpdateScalars&) {
  return {hyper.beta_1, 1.0 - hyper.beta_1, hyper.beta_2, 1.0 - hyper.beta_2};
}

// RMSprop (Hinton, "Neural networks for machine learning", lecture 6, 2012).

Formula formula_of(const RmspropHyperparameters&) { return {"rmsprop", DeviceRuleId::kRmsprop}; }

void check(const RmspropHyperparameters& hyper) {
  internal::require(in_unit(hyper.rho) && in_unit(hyper.momentum) && hyper.epsilon >= 0.0,
                    "rmsprop: expected rho and momentum in [0, 1] and epsilon >= 0, got ",
                    hyper.rho, ", ", hyper.momentum, " and ", hyper.epsilon);
}

Slots slots_of(const RmspropHyperparameters& hyper) {
  Slots slots{{"velocity", 0.0}};
  if (hyper.momentum > 0.0) slots.push_back({"momentum", 0.0});
  if (hyper.centered) slots.push_back({"average_gradient", 0.0});
  return slots;
}

Numbers numbers_of(const RmspropHyperparameters& hyper, const UpdateScalars&) {
  return {hyper.rho, 1.0 - hyper.rho, hyper.epsilon, hyper.momentum, hyper.centered ? 1.0 : 0.0};
}

}  // namespace

template <class Hyper>
RuleWith<Hyper>::RuleWith(Hyper hyperparameters) : hyper_(hyperparameters) {
  check(hyper_);
}

template <class Hyper>
std::string_view RuleWith<Hyper>::name() const {
  return formula_of(hyper_).name;
}

template <class Hyper>
Json RuleWith<Hyper>::describe() const {
  Json json = Json::object();
  json.set("rule", name());
  internal::for_each_field(hyper_, [&](std::string_view field, const auto& value) {
    json.set(std::string(field), value);
  });
  return json;
}

template <class Hyper>
std::vector<SlotSpec> RuleWith<Hyper>::slots() const {
  return slots_of(hyper_);
}

template <class Hyper>
std::optional<DeviceRule> RuleWith<Hyper>::device_rule(const UpdateScalars& scalars) const {
  DeviceRule rule{formula_of(hyper_).id,
                  {scalars.learning_rate, scalars.gradient_scale,
                   decays_weights() ? scalars.weight_decay : 0.0}};
  std::ranges::copy(numbers_of(hyper_, scalars), rule.constants.begin() + 3);
  return rule;
}

template <class Hyper>
bool RuleWith<Hyper>::skips_zero_gradient() const {
  if constexpr (std::is_same_v<Hyper, AdagradHyperparameters>) {
    // If both are 0, the step for a zero gradient is 0 / 0.
    return hyper_.epsilon > 0.0 || hyper_.initial_accumulator_value > 0.0;
  }
  return false;
}

template <class Hyper>
bool RuleWith<Hyper>::decays_weights() const {
  return formula_of(hyper_).uses_norms;
}

template <class Hyper>
bool RuleWith<Hyper>::uses_norms() const {
  return formula_of(hyper_).uses_norms;
}

template class RuleWith<AdadeltaHyperparameters>;
template class RuleWith<AdagradHyperparameters>;
template class RuleWith<AdamHyperparameters>;
template class RuleWith<FtrlHyperparameters>;
template class RuleWith<LambHyperparameters>;
template class RuleWith<LarsHyperparameters>;
template class RuleWith<LionHyperparameters>;
template class RuleWith<NadamHyperparameters>;
template class RuleWith<RmspropHyperparameters>;

SgdRule::SgdRule(double momentum) : momentum_(momentum) {
  internal::require(in_unit(momentum), "sgd: expected a momentum in [0, 1], got ", momentum);
}

SgdRule SgdRule::nesterov(double momentum) {
  SgdRule rule(momentum);
  rule.nesterov_ = momentum > 0.0;
  return rule;
}

Json SgdRule::describe() const {
  return Json::Object{{"rule", name()}, {"momentum", momentum_}, {"nesterov", nesterov_}};
}

std::vector<SlotSpec> SgdRule::slots() const {
  if (momentum_ == 0.0) return {};
  return {{"momentum", 0.0}};
}

std::optional<DeviceRule> SgdRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kSgd,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, momentum_, nesterov_ ? 1.0 : 0.0}};
}

namespace internal {

Json DecoupledWeightDecayRule::describe() const {
  return Json::Object{{"rule", "decoupled_weight_decay"}, {"then", rule_.describe()}};
}

void DecoupledWeightDecayRule::apply(const UpdateArgs& args) const {
  constexpr std::size_t kBlock = 2048;
  const DeviceRule decay{DeviceRuleId::kWeightDecay,
                         {args.scalars.learning_rate, 1.0, args.scalars.weight_decay}};
  const std::size_t element_size = size_of(args.dtype);
  std::vector<void*> slots(args.slots_data.size());
  for (std::size_t first = 0; first < args.count; first += kBlock) {
    const std::size_t offset = first * element_size;
    UpdateArgs block = args;
    block.count = std::min(kBlock, args.count - first);
    block.weights_data = static_cast<std::byte*>(args.weights_data) + offset;
    block.gradient_data = static_cast<const std::byte*>(args.gradient_data) + offset;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      slots[s] = static_cast<std::byte*>(args.slots_data[s]) + offset;
    }
    block.slots_data = slots;
    update_on_host(name(), decay, block, nullptr);
    rule_.apply(block);
  }
}

std::optional<DeviceRule> DecoupledWeightDecayRule::device_rule(
    const UpdateScalars& scalars) const {
  std::optional<DeviceRule> rule = rule_.device_rule(scalars);
  if (rule) rule->constants[DeviceRule::kWeightDecay] = scalars.weight_decay;
  return rule;
}

MovingAverageRule::MovingAverageRule(std::string_view optimizer, const EmaOptions& options)
    : options_(options) {
  internal::require(in_unit(options.momentum), optimizer,
                    ": expected an ema momentum in [0, 1], got ", options.momentum);
  internal::require(options.overwrite_frequency.value_or(1) >= 1, optimizer,
                    ": expected an ema overwrite_frequency >= 1, or none, got ",
                    options.overwrite_frequency.value_or(1));
}

Json MovingAverageRule::describe() const {
  const auto frequency = options_.overwrite_frequency;
  return Json::Object{{"rule", name()},
                      {"momentum", options_.momentum},
                      {"overwrite_frequency", frequency ? Json(*frequency) : Json()}};
}

std::optional<DeviceRule> MovingAverageRule::device_rule(const UpdateScalars& scalars) const {
  const auto [momentum, frequency] = options_;
  const double kept = scalars.iteration == 0 ? 0.0 : momentum;
  const bool overwrites = frequency && (scalars.iteration + 1) % *frequency == 0;
  return DeviceRule{DeviceRuleId::kMovingAverage,
                    {0.0, 1.0, 0.0, kept, 1.0 - kept, overwrites ? 1.0 : 0.0}};
}

}  // namespace internal

// Creation of the update rule for each optimizer's options.

OptimizerOptions shared_options(const AdamWOptions& options) {
  internal::require(options.weight_decay,
                    "adamw: expected a weight_decay, got none; use Adam to train without it");
  OptimizerOptions shared = shared_options<AdamWOptions>(options);
  if (shared.name.empty()) shared.name = "adamw";
  return shared;
}

/// Copies each hyperparameter from the option of the same name.
template <class Options>
std::unique_ptr<UpdateRule> internal::rule_of(const Options& options) {
  if constexpr (std::is_same_v<Options, SgdOptions>) {
    return std::make_unique<SgdRule>(options.nesterov ? SgdRule::nesterov(options.momentum)
                                                      : SgdRule(options.momentum));
  } else {
    typename Options::Rule::Hyperparameters hyper;
    for_each_field(hyper, [&]<class Number>(std::string_view name, Number& number) {
      bool is_found = false;
      for_each_field(options, [&]<class Option>(std::string_view option, const Option& value) {
        if constexpr (std::is_same_v<Option, Number>) {
          if (option != name) return;
          number = value;
          is_found = true;
        }
      });
      TUTTI_CHECK(is_found, "an optimizer has no option '", name, "' for its rule");
    });
    return std::make_unique<typename Options::Rule>(hyper);
  }
}

template std::unique_ptr<UpdateRule> internal::rule_of(const AdadeltaOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const AdagradOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const AdamOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const AdamWOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const FtrlOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const LambOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const LarsOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const LionOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const NadamOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const RmspropOptions&);
template std::unique_ptr<UpdateRule> internal::rule_of(const SgdOptions&);

}  // namespace tutti
