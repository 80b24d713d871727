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

void LambRule::direct(const UpdateArgs& args, void* direction) const {
  visit_arithmetic_floating(args.dtype, "lamb", [&]<class T>() {
    T* __restrict const out = static_cast<T*>(direction);
    const double t = static_cast<double>(args.scalars.iteration + 1);
    const T of_mean = static_cast<T>(1.0 / (1.0 - std::pow(hyper_.beta_1, t)));
    const T of_square = static_cast<T>(1.0 / (1.0 - std::pow(hyper_.beta_2, t)));
    const T rest_1 = static_cast<T>(1.0 - hyper_.beta_1);
    const T rest_2 = static_cast<T>(1.0 - hyper_.beta_2);
    const T epsilon = static_cast<T>(hyper_.epsilon);
    const T decay = static_cast<T>(args.scalars.weight_decay);
    const T scale = static_cast<T>(args.scalars.gradient_scale);
    const T* __restrict const w = args.weights<T>().data();
    T* __restrict const m = args.slot<T>(0).data();
    T* __restrict const v = args.slot<T>(1).data();
    const T* __restrict const gradient = args.gradient<T>().data();
    for (std::size_t i = 0; i < args.count; ++i) {
      const T g = gradient[i] * scale;
      m[i] += (g - m[i]) * rest_1;
      v[i] += (g * g - v[i]) * rest_2;
      out[i] = m[i] * of_mean / (std::sqrt(v[i] * of_square) + epsilon) + decay * w[i];
    }
  });
}

void LambRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "lamb", [&]<class T>() {
    const double of_weights = args.scalars.weight_norm, of_step = args.scalars.direction_norm;
    const double trust = of_weights > 0.0 && of_step > 0.0 ? of_weights / of_step : 1.0;
    const T rate = static_cast<T>(args.scalars.learning_rate * trust);
    T* __restrict const w = args.weights<T>().data();
    const T* __restrict const direction = args.gradient<T>().data();
    for (std::size_t i = 0; i < args.count; ++i) w[i] -= rate * direction[i];
  });
}

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
