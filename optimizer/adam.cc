// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adam.h"

#include <algorithm>
#include <cmath>

#include "tutti/core/json.h"
#include "tutti/tensor/cpu/vectorized.h"
#include "tutti/tensor/device_backend.h"

namespace tutti {
namespace internal {

template <class T>
struct AdamConstants {
  T alpha;
  T gradient_scale;
  T rest_1;  // 1 - beta_1
  T rest_2;
  T epsilon;
};

}  // namespace internal

namespace {

template <class T, bool amsgrad>
[[gnu::always_inline]] inline void update(const internal::AdamConstants<T>& constants,
                                          std::size_t count, T* __restrict w, T* __restrict m,
                                          T* __restrict v, [[maybe_unused]] T* __restrict v_hat,
                                          const T* __restrict gradient) {
  const auto [alpha, scale, rest_1, rest_2, epsilon] = constants;
  for (std::size_t i = 0; i < count; ++i) {
    const T g = gradient[i] * scale;
    m[i] += (g - m[i]) * rest_1;
    v[i] += (g * g - v[i]) * rest_2;
    T second = v[i];
    if constexpr (amsgrad) second = v_hat[i] = std::max(v_hat[i], v[i]);
    w[i] -= m[i] * alpha / (std::sqrt(second) + epsilon);
  }
}

/// The learning rate of a step with the corrections for averages that began at 0.
double corrected_rate(const AdamHyperparameters& hyper, const UpdateScalars& scalars) {
  const double t = static_cast<double>(scalars.iteration + 1);
  return scalars.learning_rate * std::sqrt(1.0 - std::pow(hyper.beta_2, t)) /
         (1.0 - std::pow(hyper.beta_1, t));
}

}  // namespace

AdamRule::AdamRule(AdamHyperparameters hyperparameters) : hyper_(hyperparameters) {
  const auto in_unit = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (!in_unit(hyper_.beta_1) || !in_unit(hyper_.beta_2) || !(hyper_.epsilon >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "adam: expected beta_1 and beta_2 in [0, 1) and epsilon of 0 or more, got ", hyper_.beta_1,
         ", ", hyper_.beta_2, " and ", hyper_.epsilon);
  }
}

Json AdamRule::describe() const {
  return Json::Object{{"rule", name()},
                      {"beta_1", hyper_.beta_1},
                      {"beta_2", hyper_.beta_2},
                      {"epsilon", hyper_.epsilon},
                      {"amsgrad", hyper_.amsgrad}};
}

std::vector<SlotSpec> AdamRule::slots() const {
  std::vector<SlotSpec> specs{{"momentum", 0.0}, {"velocity", 0.0}};
  if (hyper_.amsgrad) specs.push_back({"velocity_hat", 0.0});
  return specs;
}

void AdamRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "adam", [&]<class T>() { apply_typed<T>(args); });
}

template <class T>
void AdamRule::apply_typed(const UpdateArgs& args) const {
  const double beta_1 = hyper_.beta_1;
  const double beta_2 = hyper_.beta_2;
  const double alpha = corrected_rate(hyper_, args.scalars);
  const internal::AdamConstants<T> constants{
      static_cast<T>(alpha), static_cast<T>(args.scalars.gradient_scale),
      static_cast<T>(1.0 - beta_1), static_cast<T>(1.0 - beta_2), static_cast<T>(hyper_.epsilon)};
  T* const w = args.weights<T>().data();
  T* const m = args.slot<T>(0).data();
  T* const v = args.slot<T>(1).data();
  const T* const g = args.gradient<T>().data();
  const std::size_t count = args.count;
  if (hyper_.amsgrad) {
    T* const v_hat = args.slot<T>(2).data();
    internal::vectorized([=]() __attribute__((always_inline)) {
      update<T, true>(constants, count, w, m, v, v_hat, g);
    });
  } else {
    internal::vectorized([=]() __attribute__((always_inline)) {
      update<T, false>(constants, count, w, m, v, static_cast<T*>(nullptr), g);
    });
  }
}

std::optional<DeviceRule> AdamRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{
      DeviceRuleId::kAdam,
      {scalars.learning_rate, scalars.gradient_scale, 0.0, corrected_rate(hyper_, scalars),
       1.0 - hyper_.beta_1, 1.0 - hyper_.beta_2, hyper_.epsilon}};
}

Adam::Adam(std::span<const Variable> variables, const AdamOptions& options)
    : Optimizer(variables,
                std::make_unique<AdamRule>(AdamHyperparameters{options.beta_1, options.beta_2,
                                                               options.epsilon, options.amsgrad}),
                shared_options(options)) {}

}  // namespace tutti
