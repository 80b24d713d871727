// RMSprop: steps divided by a moving average of squared gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/rmsprop.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// RMSprop (Hinton, "Neural networks for machine learning", lecture 6, 2012).

RmspropRule::RmspropRule(RmspropHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto [rho, momentum, epsilon, centered] = hyper_;
  if (!(rho >= 0.0 && rho <= 1.0) || !(momentum >= 0.0 && momentum <= 1.0) || !(epsilon >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "rmsprop: expected rho and momentum in [0, 1] and epsilon of 0 or more, got ", rho, ", ",
         momentum, " and ", epsilon);
  }
}

Json RmspropRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> RmspropRule::slots() const {
  std::vector<SlotSpec> specs{{"velocity", 0.0}};
  if (hyper_.momentum > 0.0) specs.push_back({"momentum", 0.0});
  if (hyper_.centered) specs.push_back({"average_gradient", 0.0});
  return specs;
}

std::optional<DeviceRule> RmspropRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kRmsprop,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.rho, 1.0 - hyper_.rho,
       hyper_.epsilon, hyper_.momentum, hyper_.centered ? 1.0 : 0.0}};
}

std::unique_ptr<UpdateRule> RmspropOptions::make_rule() const {
  return std::make_unique<RmspropRule>(RmspropHyperparameters{rho, momentum, epsilon, centered});
}

}  // namespace tutti
