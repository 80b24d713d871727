// LARS: SGD with a trust ratio per variable, for large batches.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/lars.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// LARS (You et al., "Large batch training of convolutional networks", 2017).

LarsRule::LarsRule(LarsHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto [momentum, trust_coefficient, epsilon] = hyper_;
  if (!(momentum >= 0.0 && momentum <= 1.0) || !(trust_coefficient > 0.0) || !(epsilon >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "lars: expected momentum in [0, 1], a positive trust_coefficient and epsilon of 0 or "
         "more, got ",
         momentum, ", ", trust_coefficient, " and ", epsilon);
  }
}

Json LarsRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> LarsRule::slots() const { return {{"momentum", 0.0}}; }

std::optional<DeviceRule> LarsRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kLars,
                    {scalars.learning_rate, scalars.gradient_scale, scalars.weight_decay,
                     hyper_.momentum, hyper_.trust_coefficient, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> LarsOptions::make_rule() const {
  return std::make_unique<LarsRule>(LarsHyperparameters{momentum, trust_coefficient, epsilon});
}

}  // namespace tutti
