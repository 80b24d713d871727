// Construction and state of the optimizer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/names.h"
#include "optimizer/optimizer_state.h"

namespace tutti {
namespace {

void check_variables(const std::string& name, std::span<const Variable> variables) {
  internal::require(
      !variables.empty(), name,
      ": expected at least one variable, got none, so there is nothing to train; build the model "
      "first, e.g. with Input{...} as its first layer");
  std::set<const VariableStorage*> seen;
  for (const Variable& variable : variables) {
    internal::require(seen.insert(&variable.storage()).second, name, ": variable '",
                      variable.name(), "' is given twice");
    internal::require(
        variable.dtype() == DType::kFloat32 || variable.dtype() == DType::kFloat64, name,
        ": variable '", variable.name(), "' cannot be trained; expected float32 or float64, got ",
        variable.dtype(),
        is_half(variable.dtype()) ? "; use the policy mixed_bfloat16 or mixed_float16" : "");
  }
}

/// Throws unless all variables were created in the same strategy scope as `state`, which was
/// created in the current scope.
void check_same_scope(const std::string& name, std::span<const Variable> variables,
                      const Variable& state) {
  for (const Variable& variable : variables) {
    if (variable.storage().owner() == state.storage().owner()) continue;
    fail(ErrorCode::kFailedPrecondition, name, ": variable '", variable.name(),
         "' and the optimizer were created in different strategy scopes; expected one scope; "
         "create the model and the optimizer inside the same strategy.scope()");
  }
}

std::unique_ptr<UpdateRule> defined(std::unique_ptr<UpdateRule> rule) {
  internal::require(rule, "Optimizer: expected an UpdateRule, got none");
  return rule;
}

double checked_factor(const std::string& name, const char* what, double value, double least) {
  if (value >= least && std::isfinite(value)) return value;
  fail(ErrorCode::kInvalidArgument, name, ": expected a finite ", what, " >= ", least, ", got ",
       value);
}

}  // namespace

Optimizer::Optimizer(std::span<const Variable> variables, std::unique_ptr<UpdateRule> rule,
                     OptimizerOptions options)
    : rule_(defined(std::move(rule))),
      name_(options.name.empty() ? std::string(rule_->name()) : options.name),
      clipping_(options.clipping),
      schedule_(options.learning_rate.schedule),
      variables_(variables.begin(), variables.end()),
      decays_(variables.size(), true) {
  check_variables(name_, variables_);
  clipping_.validate(name_);
  weight_decay_ = checked_factor(name_, "weight_decay", options.weight_decay.value_or(0.0), 0.0);
  const double first_rate = checked_rate(options.learning_rate.at(0));
  iterations_ = internal::state_variable(Tensor::scalar(0, DType::kInt64), name_ + "/iteration");
  check_same_scope(name_, variables_, iterations_);
  learning_rate_ = internal::state_variable(Tensor::scalar(first_rate, DType::kFloat64),
                                            name_ + "/learning_rate");
  if (weight_decay_ > 0.0 && !rule_->decays_weights()) {
    decaying_rule_ = std::make_unique<internal::DecoupledWeightDecayRule>(*rule_);
  }
  if (options.ema) {
    average_rule_ = std::make_unique<internal::MovingAverageRule>(name_, *options.ema);
  }
  make_slots();
  if (options.gradient_accumulation_steps != 1) {
    accumulator_ = std::make_unique<internal::GradientAccumulator>(
        name_, variables_, options.gradient_accumulation_steps);
  }
  make_loss_scale(options);
  describe_settings();
}

/// Describes the settings, for comparison between workers. Rules without describe() contribute only
/// their name.
void Optimizer::describe_settings() {
  Json rule = std::string(rule_->name());
  try {
    rule = rule_->describe();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnimplemented) throw;
  }
  const auto limit = [](const std::optional<double>& value) { return value.value_or(0.0); };
  settings_ = concat(rule.dump(), ", weight_decay ", weight_decay_, " of ",
                     std::ranges::count(decays_, true), " variables, clipnorm ",
                     limit(clipping_.clipnorm), ", clipvalue ", limit(clipping_.clipvalue),
                     ", global_clipnorm ", limit(clipping_.global_clipnorm), ", loss_scale_factor ",
                     loss_scale_factor_, ", dynamic_loss_scale ", dynamic_loss_scale_ != nullptr,
                     ", gradient_accumulation_steps ", accumulator_ ? accumulator_->steps() : 1,
                     ", ema ", average_rule_ != nullptr);
}

Optimizer::~Optimizer() = default;

void Optimizer::make_slots() {
  for (const Variable& variable : variables_) {
    const auto make = [&](const SlotSpec& slot) {
      return variable.storage().create_slot(concat(name_, "/", variable.name(), "/", slot.name),
                                            slot.initial_value);
    };
    std::vector<Variable>& slots = slots_.emplace_back();
    for (const SlotSpec& slot : rule_->slots()) slots.push_back(make(slot));
    if (average_rule_) averages_.push_back(make(average_rule_->slots().front()));
  }
}

void Optimizer::make_loss_scale(const OptimizerOptions& options) {
  if (options.loss_scale_factor) {
    constexpr double kLeast = std::numeric_limits<float>::min();
    loss_scale_factor_ =
        checked_factor(name_, "loss_scale_factor", *options.loss_scale_factor, kLeast);
  }
  if (options.dynamic_loss_scale) use_dynamic_loss_scale(*options.dynamic_loss_scale);
}

bool Optimizer::has_loss_scale() const {
  return dynamic_loss_scale_ != nullptr || loss_scale_factor_ != 1.0;
}

void Optimizer::use_dynamic_loss_scale(const DynamicLossScaleOptions& options) {
  if (has_loss_scale()) {
    fail(ErrorCode::kFailedPrecondition, name_,
         ": the loss already has a scale; expected only one of loss_scale_factor and "
         "dynamic_loss_scale");
  }
  dynamic_loss_scale_ = std::make_unique<internal::DynamicLossScale>(name_, options);
  describe_settings();
}

void Optimizer::set_learning_rate(double value) {
  if (schedule_) {
    fail(ErrorCode::kFailedPrecondition, name_,
         ".set_learning_rate: a schedule sets the rate; create the optimizer with a constant rate "
         "to set it yourself");
  }
  learning_rate_.assign(checked_rate(value));
}

double Optimizer::checked_rate(double rate) const {
  return checked_factor(name_, "learning_rate", rate, 0.0);
}

void Optimizer::exclude_from_weight_decay(const std::vector<std::string>& parts_of_names) {
  for (const std::string& part : parts_of_names) {
    bool found = false;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (variables_[i].name().find(part) == std::string::npos) continue;
      decays_[i] = false;
      found = true;
    }
    if (found) continue;
    std::vector<std::string> names;
    for (const Variable& variable : variables_) names.push_back(variable.name());
    fail(ErrorCode::kInvalidArgument, name_,
         ".exclude_from_weight_decay: no variable's name contains '", part,
         "'; expected part of one of ", join(names));
  }
  describe_settings();
}

void Optimizer::set_decaying(std::vector<bool> decays) {
  internal::require(decays.size() == variables_.size(), name_, ".set_decaying: expected ",
                    variables_.size(), " flags, one for each variable, got ", decays.size());
  decays_ = std::move(decays);
  describe_settings();
}

void Optimizer::finalize_variable_values() {
  for (std::size_t i = 0; i < averages_.size(); ++i) variables_[i].assign(averages_[i].value());
}

std::vector<Variable> Optimizer::state_variables() const {
  std::vector<Variable> state{iterations_, learning_rate_};
  if (dynamic_loss_scale_) {
    for (const Variable& each : dynamic_loss_scale_->variables()) state.push_back(each);
  }
  if (accumulator_) state.push_back(accumulator_->num_held_variable());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    state.insert(state.end(), slots_[i].begin(), slots_[i].end());
    if (average_rule_) state.push_back(averages_[i]);
    if (accumulator_) state.push_back(accumulator_->sums()[i]);
  }
  return state;
}

}  // namespace tutti
