// Initializers, by function and by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/initializers.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/names.h"
#include "model/layers/named_functions.h"
#include "tensor/step_hooks.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {

using initializers::Distribution;
using initializers::FanMode;
using internal::call_of;
using Kind = ValueGenerator::Kind;

/// Standard deviation of a standard normal distribution that is truncated at two standard
/// deviations.
constexpr double kTruncatedStddev = 0.87962566103423978;

std::pair<double, double> fans_of(const Shape& shape) {
  if (shape.rank() == 0) return {1.0, 1.0};
  if (shape.rank() == 1) return {static_cast<double>(shape[0]), static_cast<double>(shape[0])};
  double receptive_field = 1.0;
  for (int i = 0; i < shape.rank() - 2; ++i) receptive_field *= static_cast<double>(shape[i]);
  return {receptive_field * static_cast<double>(shape[-2]),
          receptive_field * static_cast<double>(shape[-1])};
}

double fan_of(const Shape& shape, FanMode mode) {
  const auto [fan_in, fan_out] = fans_of(shape);
  if (mode == FanMode::kIn) return fan_in;
  return mode == FanMode::kOut ? fan_out : (fan_in + fan_out) / 2.0;
}

/// Creates an initializer whose name is the first element of `call`: ["random_normal", 0, 0.05]
/// gives "random_normal".
template <class Values>
Initializer of_call(Json call, Values values) {
  std::string name = call.as_array()[0].as_string();
  return Initializer(std::move(name), std::move(values), std::move(call));
}

/// Creates Keras's VarianceScaling, with variance scale / max(1, fan).
Initializer scaled(Json call, double scale, FanMode mode, Distribution distribution) {
  return of_call(std::move(call), [=](const Shape& shape) -> ValueGenerator {
    const double variance = scale / std::max(1.0, fan_of(shape, mode));
    if (distribution == Distribution::kUniform) {
      const double limit = std::sqrt(3.0 * variance);
      return {.kind = Kind::kUniform, .a = -limit, .b = limit};
    }
    if (distribution == Distribution::kUntruncatedNormal) {
      return {.kind = Kind::kNormal, .a = 0.0, .b = std::sqrt(variance)};
    }
    return {.kind = Kind::kTruncatedNormal, .a = 0.0, .b = std::sqrt(variance) / kTruncatedStddev};
  });
}

/// Creates an initializer whose parameters do not depend on the shape.
Initializer of_numbers(Json call, Kind kind, double a, double b = 0.0) {
  return of_call(std::move(call),
                 [=](const Shape&) -> ValueGenerator { return {.kind = kind, .a = a, .b = b}; });
}

/// Makes the `count` vectors of `length` elements in `vectors` orthonormal, in order. Projects each
/// vector twice, because one projection is not precise enough for nearly dependent vectors.
void orthonormalize(std::vector<double>& vectors, std::size_t count, std::size_t length) {
  for (std::size_t i = 0; i < count; ++i) {
    double* v = &vectors[i * length];
    auto dot = [&](const double* a, const double* b) {
      double sum = 0.0;
      for (std::size_t k = 0; k < length; ++k) sum += a[k] * b[k];
      return sum;
    };
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        const double* u = &vectors[j * length];
        const double share = dot(u, v);
        for (std::size_t k = 0; k < length; ++k) v[k] -= share * u[k];
      }
    }
    const double norm = std::sqrt(dot(v, v));
    for (std::size_t k = 0; k < length; ++k) v[k] /= norm;
  }
}

Tensor orthogonal_matrix(const Shape& shape, double gain, const InitializerContext& context) {
  internal::require(shape.rank() >= 2,
                    "initializers::orthogonal: expected a weight of rank >= 2, got shape ", shape);
  if (StepTracer::current()) {  // while tracing, only the shape is known
    return Tensor::zeros(shape, DType::kFloat32, context.device);
  }
  const auto columns = static_cast<std::size_t>(shape[-1]);
  const std::size_t rows =
      columns == 0 ? 0 : static_cast<std::size_t>(shape.num_elements()) / columns;
  const std::size_t count = std::min(rows, columns), length = std::max(rows, columns);
  std::vector<double> vectors =
      tutti::random_normal({static_cast<std::int64_t>(count), static_cast<std::int64_t>(length)},
                           context.key)
          .to_doubles();
  orthonormalize(vectors, count, length);
  std::vector<float> values(rows * columns);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double value = rows < columns ? vectors[r * length + c] : vectors[c * length + r];
      values[r * columns + c] = static_cast<float>(gain * value);
    }
  }
  return Tensor::from(shape, values, context.device);
}

using internal::reader_of;

const internal::NamedFunction<Initializer> kInitializers[] = {
    {"zeros", &initializers::zeros, &reader_of<&initializers::zeros>},
    {"ones", &initializers::ones, &reader_of<&initializers::ones>},
    {"glorot_uniform", &initializers::glorot_uniform, &reader_of<&initializers::glorot_uniform>},
    {"glorot_normal", &initializers::glorot_normal, &reader_of<&initializers::glorot_normal>},
    {"he_uniform", &initializers::he_uniform, &reader_of<&initializers::he_uniform>},
    {"he_normal", &initializers::he_normal, &reader_of<&initializers::he_normal>},
    {"lecun_uniform", &initializers::lecun_uniform, &reader_of<&initializers::lecun_uniform>},
    {"lecun_normal", &initializers::lecun_normal, &reader_of<&initializers::lecun_normal>},
    {"uniform", [] { return initializers::random_uniform(); },
     &reader_of<&initializers::random_uniform>},
    {"random_uniform", [] { return initializers::random_uniform(); },
     &reader_of<&initializers::random_uniform>},
    {"normal", [] { return initializers::random_normal(); },
     &reader_of<&initializers::random_normal>},
    {"random_normal", [] { return initializers::random_normal(); },
     &reader_of<&initializers::random_normal>},
    {"truncated_normal", [] { return initializers::truncated_normal(); },
     &reader_of<&initializers::truncated_normal>},
    {"orthogonal", [] { return initializers::orthogonal(); },
     &reader_of<&initializers::orthogonal>},
    {"identity", [] { return initializers::identity(); }, &reader_of<&initializers::identity>},
    {"variance_scaling", [] { return initializers::variance_scaling(); },
     &reader_of<&initializers::variance_scaling>},
    {"constant", [] { return initializers::zeros(); }, &reader_of<&initializers::constant>}};

}  // namespace

Initializer::Initializer(const std::string& name) {
  *this = internal::named_entry(kInitializers, &internal::NamedFunction<Initializer>::name, name,
                                "Initializer", "initializer")
              .make();
}

Json Initializer::to_json() const { return call_.is_null() ? Json(Json::Array{name_}) : call_; }

Initializer Initializer::from_json(const Json& call) {
  using Entry = internal::NamedFunction<Initializer>;
  static const auto table =
      internal::call_table(std::span<const Entry>(kInitializers), "initializer");
  if (!call.as_array().empty()) {
    const std::string& name = call.as_array()[0].as_string();
    if (std::ranges::find(kInitializers, name, &Entry::name) == std::end(kInitializers))
      return Initializer(name, [](const Shape&) { return ValueGenerator{}; });
  }
  return table.make(call);
}

Variable::Initializer Initializer::for_shape(const Shape& shape, DType dtype) const {
  if (distribution_) {
    ValueGenerator generator = distribution_(shape);
    generator.shape = shape;
    generator.dtype = dtype;
    return generated_initializer(generator);
  }
  return [function = function_, shape, dtype](const InitializerContext& context) {
    const Tensor value = function(shape, context);
    return value.dtype() == dtype ? value : cast(value, dtype);
  };
}

namespace initializers {

Initializer zeros() { return of_numbers(call_of("zeros"), Kind::kConstant, 0.0); }
Initializer ones() { return of_numbers(call_of("ones"), Kind::kConstant, 1.0); }
Initializer constant(double value) {
  return of_numbers(call_of("constant", value), Kind::kConstant, value);
}

Initializer values(const Tensor& values) {
  return {"values", [values](const Shape& shape, const InitializerContext& context) {
            internal::require(values.shape() == shape,
                              "initializers::values: expected values of shape ", shape, ", got ",
                              values.shape());
            return values.to(context.device);
          }};
}

Initializer random_uniform(double low, double high) {
  return of_numbers(call_of("random_uniform", low, high), Kind::kUniform, low, high);
}
Initializer random_normal(double mean, double stddev) {
  return of_numbers(call_of("random_normal", mean, stddev), Kind::kNormal, mean, stddev);
}
Initializer truncated_normal(double mean, double stddev) {
  return of_numbers(call_of("truncated_normal", mean, stddev), Kind::kTruncatedNormal, mean,
                    stddev);
}

Initializer glorot_uniform() {
  return scaled(call_of("glorot_uniform"), 1.0, FanMode::kAverage, Distribution::kUniform);
}
Initializer glorot_normal() {
  return scaled(call_of("glorot_normal"), 1.0, FanMode::kAverage, Distribution::kTruncatedNormal);
}
Initializer he_uniform() {
  return scaled(call_of("he_uniform"), 2.0, FanMode::kIn, Distribution::kUniform);
}
Initializer he_normal() {
  return scaled(call_of("he_normal"), 2.0, FanMode::kIn, Distribution::kTruncatedNormal);
}
Initializer lecun_uniform() {
  return scaled(call_of("lecun_uniform"), 1.0, FanMode::kIn, Distribution::kUniform);
}
Initializer lecun_normal() {
  return scaled(call_of("lecun_normal"), 1.0, FanMode::kIn, Distribution::kTruncatedNormal);
}

Initializer variance_scaling(VarianceScalingOptions options) {
  return scaled(call_of("variance_scaling", options), options.scale, options.mode,
                options.distribution);
}
Initializer orthogonal(double gain) {
  return of_call(call_of("orthogonal", gain),
                 [gain](const Shape& shape, const InitializerContext& context) {
                   return orthogonal_matrix(shape, gain, context);
                 });
}
Initializer identity(double gain) {
  return of_numbers(call_of("identity", gain), Kind::kIdentity, gain);
}

}  // namespace initializers
}  // namespace tutti
