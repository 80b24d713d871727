// Steps divided by what squared gradients add up to: Adagrad, Adadelta, RMSprop, Ftrl.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adagrad.h"

#include <algorithm>
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

// Adadelta (Zeiler, "Adadelta: an adaptive learning rate method", 2012).

AdadeltaRule::AdadeltaRule(AdadeltaHyperparameters hyperparameters) : hyper_(hyperparameters) {
  if (!(hyper_.rho >= 0.0 && hyper_.rho <= 1.0) || !(hyper_.epsilon > 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "adadelta: expected rho in [0, 1] and a positive epsilon, got ", hyper_.rho, " and ",
         hyper_.epsilon);
  }
}

Json AdadeltaRule::describe() const { return internal::rule_json(name(), hyper_); }

std::vector<SlotSpec> AdadeltaRule::slots() const {
  return {{"accumulated_grad", 0.0}, {"accumulated_delta_var", 0.0}};
}

void AdadeltaRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "adadelta", [&]<class T>() {
    T* __restrict const w = args.weights<T>().data();
    T* __restrict const squares = args.slot<T>(0).data();
    T* __restrict const deltas = args.slot<T>(1).data();
    const T* __restrict const gradient = args.gradient<T>().data();
    const T lr = static_cast<T>(args.scalars.learning_rate);
    const T scale = static_cast<T>(args.scalars.gradient_scale);
    const T rho = static_cast<T>(hyper_.rho), rest = static_cast<T>(1.0 - hyper_.rho);
    const T epsilon = static_cast<T>(hyper_.epsilon);
    for (std::size_t i = 0; i < args.count; ++i) {
      const T g = gradient[i] * scale;
      squares[i] = rho * squares[i] + rest * (g * g);
      const T delta = -(std::sqrt(deltas[i] + epsilon) * g / std::sqrt(squares[i] + epsilon));
      deltas[i] = rho * deltas[i] + rest * (delta * delta);
      w[i] += lr * delta;
    }
  });
}

std::optional<DeviceRule> AdadeltaRule::device_rule(const UpdateScalars& scalars) const {
  return DeviceRule{DeviceRuleId::kAdadelta,
                    {scalars.learning_rate, scalars.gradient_scale, 0.0, hyper_.rho,
                     1.0 - hyper_.rho, hyper_.epsilon}};
}

std::unique_ptr<UpdateRule> AdadeltaOptions::make_rule() const {
  return std::make_unique<AdadeltaRule>(AdadeltaHyperparameters{rho, epsilon});
}

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
