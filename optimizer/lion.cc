// Lion: steps along the sign of a moving average.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/lion.h"

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023).

namespace {

/// -1, 0 or 1; what is no number stays none.
template <class T>
T sign(T value) {
  const T above = value > T(0) ? T(1) : T(0);
  const T below = value < T(0) ? T(1) : T(0);
  return value == value ? above - below : value;
}

}  // namespace

LionRule::LionRule(LionHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto [beta_1, beta_2] = hyper_;
  if (!(beta_1 > 0.0 && beta_1 <= 1.0) || !(beta_2 >= 0.0 && beta_2 <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, "lion: expected beta_1 in (0, 1] and beta_2 in [0, 1], got ",
         beta_1, " and ", beta_2);
  }
}

Json LionRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> LionRule::slots() const { return {{"momentum", 0.0}}; }

void LionRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "lion", [&]<class T>() {
    T* __restrict const w = args.weights<T>().data();
    T* __restrict const m = args.slot<T>(0).data();
    const T* __restrict const gradient = args.gradient<T>().data();
    const T lr = static_cast<T>(args.scalars.learning_rate);
    const T scale = static_cast<T>(args.scalars.gradient_scale);
    const T beta_1 = static_cast<T>(hyper_.beta_1), rest_1 = static_cast<T>(1.0 - hyper_.beta_1);
    const T beta_2 = static_cast<T>(hyper_.beta_2), rest_2 = static_cast<T>(1.0 - hyper_.beta_2);
    for (std::size_t i = 0; i < args.count; ++i) {
      const T g = gradient[i] * scale;
      w[i] -= lr * sign(m[i] * beta_1 + g * rest_1);
      m[i] = m[i] * beta_2 + g * rest_2;
    }
  });
}

std::optional<DeviceRule> LionRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kLion,
                    {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.beta_1,
                     1.0 - hyper_.beta_1, hyper_.beta_2, 1.0 - hyper_.beta_2}};
}

std::unique_ptr<UpdateRule> LionOptions::make_rule() const {
  return std::make_unique<LionRule>(LionHyperparameters{beta_1, beta_2});
}

}  // namespace tutti
