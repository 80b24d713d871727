// RMSprop: steps divided by a moving average of squared gradients.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/rmsprop.h"

#include <cmath>

#include "optimizer/rule_json.h"
#include "tensor/device_backend.h"
#include "tutti/core/json.h"

namespace tutti {

// RMSprop (Hinton, "Neural networks for machine learning", lecture 6, 2012).

RmspropRule::RmspropRule(RmspropHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto [rho, momentum, epsilon, centered] = hyper_;
  if (!(rho >= 0.0 && rho <= 1.0) || !(momentum >= 0.0 && momentum <= 1.0) || !(epsilon >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "rmsprop: expected rho and momentum in [0, 1] and epsilon of 0 or more, got ", rho, ", ",
         momentum, " and ", epsilon);
  }
}

Json RmspropRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> RmspropRule::slots() const {
  std::vector<SlotSpec> specs{{"velocity", 0.0}};
  if (hyper_.momentum > 0.0) specs.push_back({"momentum", 0.0});
  if (hyper_.centered) specs.push_back({"average_gradient", 0.0});
  return specs;
}

namespace {

/// m and a may be nullptr when their flag is false.
template <class T, bool has_momentum, bool centered>
void update(const UpdateArgs& args, const RmspropHyperparameters& hyper, T* __restrict v,
            [[maybe_unused]] T* __restrict m, [[maybe_unused]] T* __restrict a) {
  T* __restrict const w = args.weights<T>().data();
  const T* __restrict const gradient = args.gradient<T>().data();
  const T lr = static_cast<T>(args.scalars.learning_rate);
  const T scale = static_cast<T>(args.scalars.gradient_scale);
  const T rho = static_cast<T>(hyper.rho), rest = static_cast<T>(1.0 - hyper.rho);
  const T epsilon = static_cast<T>(hyper.epsilon);
  [[maybe_unused]] const T momentum = static_cast<T>(hyper.momentum);
  for (std::size_t i = 0; i < args.count; ++i) {
    const T g = gradient[i] * scale;
    v[i] = rho * v[i] + rest * (g * g);
    T square = v[i];
    if constexpr (centered) {
      a[i] = rho * a[i] + rest * g;
      square = v[i] - a[i] * a[i];
    }
    T step = lr * g / std::sqrt(square + epsilon);
    if constexpr (has_momentum) step = m[i] = momentum * m[i] + step;
    w[i] -= step;
  }
}

}  // namespace

void RmspropRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "rmsprop", [&]<class T>() {
    T* const none = nullptr;
    T* const v = args.slot<T>(0).data();
    T* const second = args.slots_data.size() > 1 ? args.slot<T>(1).data() : none;
    if (hyper_.momentum > 0.0 && hyper_.centered) {
      update<T, true, true>(args, hyper_, v, second, args.slot<T>(2).data());
    } else if (hyper_.momentum > 0.0) {
      update<T, true, false>(args, hyper_, v, second, none);
    } else if (hyper_.centered) {
      update<T, false, true>(args, hyper_, v, none, second);
    } else {
      update<T, false, false>(args, hyper_, v, none, none);
    }
  });
}

std::optional<DeviceRule> RmspropRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kRmsprop,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.rho, 1.0 - hyper_.rho,
       hyper_.epsilon, hyper_.momentum, hyper_.centered ? 1.0 : 0.0}};
}

std::unique_ptr<UpdateRule> RmspropOptions::make_rule() const {
  return std::make_unique<RmspropRule>(RmspropHyperparameters{rho, momentum, epsilon, centered});
}

}  // namespace tutti
