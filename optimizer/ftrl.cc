// FTRL: follow the regularized leader, for sparse weights.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/ftrl.h"

#include <algorithm>
#include <cmath>

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

void FtrlRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "ftrl", [&]<class T>() {
    const double rate = args.scalars.learning_rate;
    const T lr = static_cast<T>(rate), scale = static_cast<T>(args.scalars.gradient_scale);
    const T l1 = static_cast<T>(hyper_.l1_regularization_strength);
    const T l2 = static_cast<T>(l2_at(rate));
    const T shrinkage = static_cast<T>(2.0 * hyper_.l2_shrinkage_regularization_strength);
    T* __restrict const w = args.weights<T>().data();
    T* __restrict const accumulator = args.slot<T>(0).data();
    T* __restrict const linear = args.slot<T>(1).data();
    const T* __restrict const gradient = args.gradient<T>().data();
    const auto update = [&](const auto& power) {
      for (std::size_t i = 0; i < args.count; ++i) {
        const T g = gradient[i] * scale;
        const T sum = accumulator[i] + g * g;
        const T raised = power(sum);
        linear[i] += g + shrinkage * w[i] - (raised - power(accumulator[i])) / lr * w[i];
        const T clipped = std::min(std::max(linear[i], -l1), l1);
        w[i] = (clipped - linear[i]) / (raised / lr + l2);
        accumulator[i] = sum;
      }
    };
    const T exponent = static_cast<T>(-hyper_.learning_rate_power);
    if (hyper_.learning_rate_power == -0.5) {
      update([](T value) { return std::sqrt(value); });
    } else {
      update([exponent](T value) { return std::pow(value, exponent); });
    }
  });
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
