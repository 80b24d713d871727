// FTRL: follow the regularized leader, for sparse weights.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/ftrl.h"

#include <algorithm>

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Ftrl (McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013).

FtrlRule::FtrlRule(FtrlHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const double smallest =
      std::min({hyper_.initial_accumulator_value, hyper_.l1_regularization_strength,
                hyper_.l2_regularization_strength, hyper_.l2_shrinkage_regularization_strength,
                -hyper_.learning_rate_power});
  if (!(smallest >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "ftrl: expected learning_rate_power of 0 or less, initial_accumulator_value and strengths "
         "of 0 or more, got ",
         hyper_.learning_rate_power, ", ", hyper_.initial_accumulator_value, " and ",
         hyper_.l1_regularization_strength, ", ", hyper_.l2_regularization_strength, ", ",
         hyper_.l2_shrinkage_regularization_strength);
  }
}

Json FtrlRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> FtrlRule::slots() const {
  return {{"accumulator", hyper_.initial_accumulator_value}, {"linear", 0.0}};
}

double FtrlRule::l2_at(double rate) const {
  return 2.0 * hyper_.l2_regularization_strength + hyper_.beta / rate;
}

std::optional<DeviceRule> FtrlRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kFtrl,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.l1_regularization_strength,
       l2_at(scalars.learning_rate), 2.0 * hyper_.l2_shrinkage_regularization_strength,
       -hyper_.learning_rate_power}};
}

std::unique_ptr<UpdateRule> FtrlOptions::make_rule() const {
  return std::make_unique<FtrlRule>(FtrlHyperparameters{
      learning_rate_power, initial_accumulator_value, l1_regularization_strength,
      l2_regularization_strength, l2_shrinkage_regularization_strength, beta});
}

}  // namespace tutti
