// Adagrad: steps divided by the sum of squared gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adagrad.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Adagrad (Duchi et al., "Adaptive subgradient methods", JMLR 2011).

AdagradRule::AdagradRule(AdagradHyperparameters hyperparameters) : hyper_(hyperparameters) {
  if (!(hyper_.initial_accumulator_value >= 0.0) || !(hyper_.epsilon >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "adagrad: expected initial_accumulator_value and epsilon of 0 or more, got ",
         hyper_.initial_accumulator_value, " and ", hyper_.epsilon);
  }
}

Json AdagradRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> AdagradRule::slots() const {
  return {{"accumulator", hyper_.initial_accumulator_value}};
}

bool AdagradRule::skips_zero_gradient() const {
  return hyper_.epsilon > 0.0 || hyper_.initial_accumulator_value > 0.0;  // else 0 / 0
}

std::optional<DeviceRule> AdagradRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kAdagrad,
                    {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> AdagradOptions::make_rule() const {
  return std::make_unique<AdagradRule>(AdagradHyperparameters{initial_accumulator_value, epsilon});
}

}  // namespace tutti
