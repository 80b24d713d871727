// Adagrad: steps divided by the sum of squared gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adagrad.h"

#include <cmath>

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

void AdagradRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "adagrad", [&]<class T>() {
    T* __restrict const w = args.weights<T>().data();
    T* __restrict const accumulator = args.slot<T>(0).data();
    const T* __restrict const gradient = args.gradient<T>().data();
    const T lr = static_cast<T>(args.scalars.learning_rate);
    const T scale = static_cast<T>(args.scalars.gradient_scale);
    const T epsilon = static_cast<T>(hyper_.epsilon);
    for (std::size_t i = 0; i < args.count; ++i) {
      const T g = gradient[i] * scale;
      accumulator[i] += g * g;
      w[i] -= lr * g / std::sqrt(accumulator[i] + epsilon);
    }
  });
}

std::optional<DeviceRule> AdagradRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kAdagrad,
                    {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> AdagradOptions::make_rule() const {
  return std::make_unique<AdagradRule>(AdagradHyperparameters{initial_accumulator_value, epsilon});
}

}  // namespace tutti
