// Adadelta: steps in the unit of the weights, without a rate that must fit the gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adadelta.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Adadelta (Zeiler, "Adadelta: an adaptive learning rate method", 2012).

AdadeltaRule::AdadeltaRule(AdadeltaHyperparameters hyperparameters) : hyper_(hyperparameters) {
  if (!(hyper_.rho >= 0.0 && hyper_.rho <= 1.0) || !(hyper_.epsilon > 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "adadelta: expected rho in [0, 1] and a positive epsilon, got ", hyper_.rho, " and ",
         hyper_.epsilon);
  }
}

Json AdadeltaRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> AdadeltaRule::slots() const {
  return {{"accumulated_grad", 0.0}, {"accumulated_delta_var", 0.0}};
}

std::optional<DeviceRule> AdadeltaRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kAdadelta,
                    {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.rho,
                     1.0 - hyper_.rho, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> AdadeltaOptions::make_rule() const {
  return std::make_unique<AdadeltaRule>(AdadeltaHyperparameters{rho, epsilon});
}

}  // namespace tutti
