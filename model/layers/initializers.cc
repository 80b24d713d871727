// Initializers, by function and by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/initializers.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {

enum class FanMode { kIn, kAverage };
enum class Distribution { kUniform, kTruncatedNormal };

/// Standard deviation of a standard normal that is cut at two standard deviations.
constexpr double kTruncatedStddev = 0.87962566103423978;

std::pair<double, double> fans_of(const Shape& shape) {
  if (shape.rank() == 0) return {1.0, 1.0};
  if (shape.rank() == 1) return {static_cast<double>(shape[0]), static_cast<double>(shape[0])};
  double receptive_field = 1.0;
  for (int i = 0; i < shape.rank() - 2; ++i) receptive_field *= static_cast<double>(shape[i]);
  return {receptive_field * static_cast<double>(shape[-2]),
          receptive_field * static_cast<double>(shape[-1])};
}

/// Keras's VarianceScaling: variance scale / max(1, fan).
Initializer variance_scaling(std::string name, double scale, FanMode mode,
                             Distribution distribution) {
  return Initializer(std::move(name), [=](const Shape& shape, const InitializerContext& context) {
    const auto [fan_in, fan_out] = fans_of(shape);
    const double fan = mode == FanMode::kIn ? fan_in : (fan_in + fan_out) / 2.0;
    const double variance = scale / std::max(1.0, fan);
    if (distribution == Distribution::kUniform) {
      const double limit = std::sqrt(3.0 * variance);
      return tutti::random_uniform(shape, context.key, -limit, limit, DType::kFloat32,
                                   context.device);
    }
    return tutti::truncated_normal(shape, context.key, 0.0, std::sqrt(variance) / kTruncatedStddev,
                                   DType::kFloat32, context.device);
  });
}

struct NamedInitializer {
  const char* name;
  Initializer (*make)();
};

const std::vector<NamedInitializer>& named_initializers() {
  using namespace initializers;
  static const std::vector<NamedInitializer> table = {
      {"zeros", &zeros},
      {"ones", &ones},
      {"glorot_uniform", &glorot_uniform},
      {"glorot_normal", &glorot_normal},
      {"he_uniform", &he_uniform},
      {"he_normal", &he_normal},
      {"lecun_uniform", &lecun_uniform},
      {"lecun_normal", &lecun_normal},
      {"uniform", [] { return initializers::random_uniform(); }},
      {"random_uniform", [] { return initializers::random_uniform(); }},
      {"normal", [] { return initializers::random_normal(); }},
      {"random_normal", [] { return initializers::random_normal(); }},
      {"truncated_normal", [] { return initializers::truncated_normal(); }},
  };
  return table;
}

}  // namespace

Initializer::Initializer(const std::string& name) {
  std::vector<std::string> names;
  for (const NamedInitializer& entry : named_initializers()) {
    if (name == entry.name) {
      *this = entry.make();
      return;
    }
    names.emplace_back(entry.name);
  }
  fail(ErrorCode::kInvalidArgument, "Initializer: no initializer is named '", name,
       "'; expected one of ", join(names));
}

Variable::Initializer Initializer::for_shape(const Shape& shape) const {
  return [function = function_, shape](const InitializerContext& context) {
    return function(shape, context);
  };
}

namespace initializers {

Initializer zeros() {
  return {"zeros", [](const Shape& shape, const InitializerContext& context) {
            return Tensor::zeros(shape, DType::kFloat32, context.device);
          }};
}

Initializer ones() {
  return {"ones", [](const Shape& shape, const InitializerContext& context) {
            return Tensor::ones(shape, DType::kFloat32, context.device);
          }};
}

Initializer constant(double value) {
  return {"constant", [value](const Shape& shape, const InitializerContext& context) {
            return Tensor::full(shape, value, DType::kFloat32, context.device);
          }};
}

Initializer values(const Tensor& values) {
  return {"values", [values](const Shape& shape, const InitializerContext& context) {
            if (!(values.shape() == shape)) {
              fail(ErrorCode::kInvalidArgument, "initializers::values: expected values of shape ",
                   shape, ", got ", values.shape());
            }
            return values.to(context.device);
          }};
}

Initializer random_uniform(double low, double high) {
  return {"random_uniform", [=](const Shape& shape, const InitializerContext& context) {
            return tutti::random_uniform(shape, context.key, low, high, DType::kFloat32,
                                         context.device);
          }};
}

Initializer random_normal(double mean, double stddev) {
  return {"random_normal", [=](const Shape& shape, const InitializerContext& context) {
            return tutti::random_normal(shape, context.key, mean, stddev, DType::kFloat32,
                                        context.device);
          }};
}

Initializer truncated_normal(double mean, double stddev) {
  return {"truncated_normal", [=](const Shape& shape, const InitializerContext& context) {
            return tutti::truncated_normal(shape, context.key, mean, stddev, DType::kFloat32,
                                           context.device);
          }};
}

Initializer glorot_uniform() {
  return variance_scaling("glorot_uniform", 1.0, FanMode::kAverage, Distribution::kUniform);
}
Initializer glorot_normal() {
  return variance_scaling("glorot_normal", 1.0, FanMode::kAverage, Distribution::kTruncatedNormal);
}
Initializer he_uniform() {
  return variance_scaling("he_uniform", 2.0, FanMode::kIn, Distribution::kUniform);
}
Initializer he_normal() {
  return variance_scaling("he_normal", 2.0, FanMode::kIn, Distribution::kTruncatedNormal);
}
Initializer lecun_uniform() {
  return variance_scaling("lecun_uniform", 1.0, FanMode::kIn, Distribution::kUniform);
}
Initializer lecun_normal() {
  return variance_scaling("lecun_normal", 1.0, FanMode::kIn, Distribution::kTruncatedNormal);
}

}  // namespace initializers
}  // namespace tutti
