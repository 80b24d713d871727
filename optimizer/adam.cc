// Adam and its kin: AdamW, Nadam.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adam.h"

#include <cmath>

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).

namespace {

void check_constants(const char* rule, double beta_1, double beta_2, double epsilon) {
  const auto in_unit = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (in_unit(beta_1) && in_unit(beta_2) && epsilon >= 0.0) return;
  fail(ErrorCode::kInvalidArgument, rule,
       ": expected beta_1 and beta_2 in [0, 1) and epsilon of 0 or more, got ", beta_1, ", ",
       beta_2, " and ", epsilon);
}

/// The learning rate of a step with the corrections for averages that began at 0.
double corrected_rate(const AdamHyperparameters& hyper, const UpdateScalars& scalars) {
  const double t = static_cast<double>(scalars.iteration + 1);
  return scalars.learning_rate * std::sqrt(1.0 - std::pow(hyper.beta_2, t)) /
         (1.0 - std::pow(hyper.beta_1, t));
}

}  // namespace

AdamRule::AdamRule(AdamHyperparameters hyperparameters) : hyper_(hyperparameters) {
  check_constants("adam", hyper_.beta_1, hyper_.beta_2, hyper_.epsilon);
}

Json AdamRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> AdamRule::slots() const {
  std::vector<SlotSpec> specs{{"momentum", 0.0}, {"velocity", 0.0}};
  if (hyper_.amsgrad) specs.push_back({"velocity_hat", 0.0});
  return specs;
}

std::optional<DeviceRule> AdamRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kAdam,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, corrected_rate(hyper_, scalars),
       1.0 - hyper_.beta_1, 1.0 - hyper_.beta_2, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> AdamOptions::make_rule() const {
  return std::make_unique<AdamRule>(AdamHyperparameters{beta_1, beta_2, epsilon, amsgrad});
}

// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019).

namespace {

OptimizerOptions named_options(const AdamWOptions& options) {
  if (!options.weight_decay) {
    fail(ErrorCode::kInvalidArgument,
         "adamw: expected a weight_decay, got none; try Adam for training without");
  }
  OptimizerOptions shared = shared_options(options);
  if (shared.name.empty()) shared.name = "adamw";
  return shared;
}

}  // namespace

AdamW::AdamW(std::span<const Variable> variables, const AdamWOptions& options)
    : Optimizer(variables,
                std::make_unique<AdamRule>(AdamHyperparameters{options.beta_1, options.beta_2,
                                                               options.epsilon, options.amsgrad}),
                named_options(options)) {}

// Nadam (Dozat, "Incorporating Nesterov momentum into Adam", ICLR 2016).

namespace {

/// u(t): the momentum of step t = 1, 2, ...
double momentum_at(double beta_1, double t) { return beta_1 * (1.0 - 0.5 * std::pow(0.96, t)); }

/// u(1) * ... * u(t). The rule keeps no state of its own, so the product is computed anew; it is
/// soon too small to change 1 - product.
double product_until(double beta_1, std::int64_t t) {
  constexpr double kNegligible = 1e-18;
  double product = 1.0;
  for (std::int64_t i = 1; i <= t && product > kNegligible; ++i) {
    product *= momentum_at(beta_1, static_cast<double>(i));
  }
  return product;
}

/// What a step multiplies the mean, the gradient and the mean square with.
struct Factors {
  Factors(const NadamHyperparameters& hyper, std::int64_t iteration) {
    const std::int64_t step = iteration + 1;
    const double t = static_cast<double>(step);
    const double now = momentum_at(hyper.beta_1, t), next = momentum_at(hyper.beta_1, t + 1.0);
    const double product = product_until(hyper.beta_1, step);
    of_mean = next / (1.0 - product * next);
    of_gradient = (1.0 - now) / (1.0 - product);
    of_square = 1.0 / (1.0 - std::pow(hyper.beta_2, t));
  }
  double of_mean, of_gradient, of_square;
};

}  // namespace

NadamRule::NadamRule(NadamHyperparameters hyperparameters) : hyper_(hyperparameters) {
  check_constants("nadam", hyper_.beta_1, hyper_.beta_2, hyper_.epsilon);
}

Json NadamRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> NadamRule::slots() const { return {{"momentum", 0.0}, {"velocity", 0.0}}; }

std::optional<DeviceRule> NadamRule::device_rule(const UpdateScalars& scalars) const {
  const Factors factors(hyper_, scalars.iteration);
  return DeviceRule{
      DeviceRuleId::kNadam,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, factors.of_mean, factors.of_gradient,
       factors.of_square, 1.0 - hyper_.beta_1, 1.0 - hyper_.beta_2, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> NadamOptions::make_rule() const {
  return std::make_unique<NadamRule>(NadamHyperparameters{beta_1, beta_2, epsilon});
}

}  // namespace tutti
