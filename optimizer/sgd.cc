// Steps along the gradient, or along its sign: SGD and Lion.
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
