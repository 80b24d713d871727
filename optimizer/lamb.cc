// LAMB: Adam with a trust ratio per variable, for large batches.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/lamb.h"

#include <cmath>

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// LAMB (You et al., "Large batch optimization for deep learning", ICLR 2020).

LambRule::LambRule(LambHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto in_unit = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (!in_unit(hyper_.beta_1) || !in_unit(hyper_.beta_2) || !(hyper_.epsilon >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "lamb: expected beta_1 and beta_2 in [0, 1) and epsilon of 0 or more, got ", hyper_.beta_1,
         ", ", hyper_.beta_2, " and ", hyper_.epsilon);
  }
}

Json LambRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> LambRule::slots() const { return {{"momentum", 0.0}, {"velocity", 0.0}}; }

std::optional<DeviceRule> LambRule::device_rule(const UpdateScalars& scalars) const {
  const double t = static_cast<double>(scalars.iteration + 1);
  return DeviceRule{
      DeviceRuleId::kLamb,
      {scalars.learning_rate, scalars.gradient_scale, scalars.weight_decay,
       1.0 / (1.0 - std::pow(hyper_.beta_1, t)), 1.0 / (1.0 - std::pow(hyper_.beta_2, t)),
       1.0 - hyper_.beta_1, 1.0 - hyper_.beta_2, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> LambOptions::make_rule() const {
  return std::make_unique<LambRule>(LambHyperparameters{beta_1, beta_2, epsilon});
}

}  // namespace tutti
