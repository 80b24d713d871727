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

void LarsRule::direct(const UpdateArgs& args, void* direction) const {
  visit_arithmetic_floating(args.dtype, "lars", [&]<class T>() {
    T* __restrict const out = static_cast<T*>(direction);
    const T* __restrict const gradient = args.gradient<T>().data();
    const T scale = static_cast<T>(args.scalars.gradient_scale);
    for (std::size_t i = 0; i < args.count; ++i) out[i] = gradient[i] * scale;
  });
}

void LarsRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "lars", [&]<class T>() {
    const UpdateScalars& scalars = args.scalars;
    const bool has_norms = scalars.weight_norm > 0.0 && scalars.direction_norm > 0.0;
    const double trust = has_norms
                             ? hyper_.trust_coefficient * scalars.weight_norm /
                                   (scalars.direction_norm +
                                    scalars.weight_decay * scalars.weight_norm + hyper_.epsilon)
                             : 1.0;
    const T rate = static_cast<T>(scalars.learning_rate * trust);
    const T decay = static_cast<T>(scalars.weight_decay);
    const T momentum = static_cast<T>(hyper_.momentum);
    T* __restrict const w = args.weights<T>().data();
    T* __restrict const m = args.slot<T>(0).data();
    const T* __restrict const g = args.gradient<T>().data();
    for (std::size_t i = 0; i < args.count; ++i) {
      m[i] = momentum * m[i] + rate * (g[i] + decay * w[i]);
      w[i] -= m[i];
    }
  });
}

std::optional<DeviceRule> LarsRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kLars,
                    {scalars.learning_rate, scalars.gradient_scale, scalars.weight_decay,
                     hyper_.momentum, hyper_.trust_coefficient, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> LarsOptions::make_rule() const {
  return std::make_unique<LarsRule>(LarsHyperparameters{momentum, trust_coefficient, epsilon});
}

}  // namespace tutti
