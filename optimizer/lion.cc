// Lion: steps along the sign of a moving average.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/lion.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023).

LionRule::LionRule(LionHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto [beta_1, beta_2] = hyper_;
  if (!(beta_1 > 0.0 && beta_1 <= 1.0) || !(beta_2 >= 0.0 && beta_2 <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, "lion: expected beta_1 in (0, 1] and beta_2 in [0, 1], got ",
         beta_1, " and ", beta_2);
  }
}

Json LionRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> LionRule::slots() const { return {{"momentum", 0.0}}; }

std::optional<DeviceRule> LionRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kLion,
                    {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.beta_1,
                     1.0 - hyper_.beta_1, hyper_.beta_2, 1.0 - hyper_.beta_2}};
}

std::unique_ptr<UpdateRule> LionOptions::make_rule() const {
  return std::make_unique<LionRule>(LionHyperparameters{beta_1, beta_2});
}

}  // namespace tutti
