// SGD: steps along the gradient, with momentum and Nesterov's form.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/sgd.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Stochastic gradient descent, with momentum and Nesterov's form.

SgdRule::SgdRule(double momentum) : momentum_(momentum) {
  if (!(momentum >= 0.0 && momentum <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, "sgd: expected a momentum in [0, 1], got ", momentum);
  }
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

std::unique_ptr<UpdateRule> SgdOptions::make_rule() const {
  return std::make_unique<SgdRule>(nesterov ? SgdRule::nesterov(momentum) : SgdRule(momentum));
}

}  // namespace tutti
