// SGD: steps along the gradient, with momentum and Nesterov's form.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/sgd.h"

#include "optimizer/rule_json.h"
#include "tensor/cpu/vectorized.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// Stochastic gradient descent, with momentum and Nesterov's form.

SgdRule::SgdRule(double momentum) : momentum_(momentum) {
  if (!(momentum >= 0.0 && momentum <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, "sgd: expected a momentum in [0, 1], got ", momentum);
  }
}

SgdRule SgdRule::nesterov(double momentum) {
  SgdRule rule(momentum);
  rule.nesterov_ = momentum > 0.0;
  return rule;
}

Json SgdRule::describe() const {
  return Json::Object{{"rule", name()}, {"momentum", momentum_}, {"nesterov", nesterov_}};
}

std::vector<SlotSpec> SgdRule::slots() const {
  if (momentum_ == 0.0) return {};
  return {{"momentum", 0.0}};
}

void SgdRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "sgd", [&]<class T>() { apply_typed<T>(args); });
}

template <class T>
void SgdRule::apply_typed(const UpdateArgs& args) const {
  const double momentum = momentum_;
  const bool nesterov = nesterov_;
  internal::vectorized([&]() __attribute__((always_inline)) {
    // Locals of this function: stores to the weights cannot change them.
    T* const w = args.weights<T>().data();
    const T* const g = args.gradient<T>().data();
    const std::size_t count = args.count;
    const T lr = static_cast<T>(args.scalars.learning_rate);
    const T scale = static_cast<T>(args.scalars.gradient_scale);
    if (momentum == 0.0) {
      for (std::size_t i = 0; i < count; ++i) w[i] -= lr * (g[i] * scale);
      return;
    }
    const T m = static_cast<T>(momentum);
    T* const v = args.slot<T>(0).data();
    for (std::size_t i = 0; i < count; ++i) {
      const T step = lr * (g[i] * scale);
      v[i] = m * v[i] - step;
      w[i] += nesterov ? m * v[i] - step : v[i];
    }
  });
}

std::optional<DeviceRule> SgdRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kSgd,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, momentum_, nesterov_ ? 1.0 : 0.0}};
}

std::unique_ptr<UpdateRule> SgdOptions::make_rule() const {
  return std::make_unique<SgdRule>(nesterov ? SgdRule::nesterov(momentum) : SgdRule(momentum));
}

}  // namespace tutti
