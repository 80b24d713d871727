// Positions of steps as rotations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/rotary_embedding.h"

#include <cmath>

#include "model/layers/in_float32.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// `function` of the angles of all steps and pairs, as it broadcasts to a half of x.
Tensor of_angles(double (*function)(double), const Tensor& x, int step_axis, double max_wavelength,
                 std::int64_t first_step) {
  const std::int64_t steps = x.shape()[step_axis], pairs = x.shape()[-1] / 2;
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(steps * pairs));
  for (std::int64_t step = first_step; step < first_step + steps; ++step) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(pairs);
      values.push_back(function(static_cast<double>(step) * std::pow(max_wavelength, -share)));
    }
  }
  Shape wide = x.shape().with_dim(-1, pairs);
  for (int axis = 0; axis + 1 < wide.rank(); ++axis)
    if (axis != step_axis) wide = wide.with_dim(axis, 1);
  return cast(Tensor::from(wide, values, x.device()), x.dtype());
}

}  // namespace

Tensor internal::turned_by_step(const Tensor& given, int step_axis, double max_wavelength,
                                std::int64_t first_step) {
  return in_float32(given, [&](const Tensor& x) {
    const Tensor cosines = of_angles(&std::cos, x, step_axis, max_wavelength, first_step);
    const Tensor sines = of_angles(&std::sin, x, step_axis, max_wavelength, first_step);
    const std::vector<Tensor> halves = split(x, 2, -1);
    return concat({halves[0] * cosines - halves[1] * sines,  //
                   halves[1] * cosines + halves[0] * sines},
                  -1);
  });
}

void internal::require_rotation(std::int64_t features, double max_wavelength,
                                std::string_view who) {
  if (features % 2 != 0)
    fail(ErrorCode::kInvalidArgument, who,
         ": rotations turn pairs of features; expected an even "
         "number of features, got ",
         features);
  if (!(max_wavelength > 0.0)) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a positive max_wavelength, got ",
         max_wavelength);
  }
}

RotaryEmbedding::RotaryEmbedding(RotaryEmbeddingOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  internal::require_rotation(0, options_.max_wavelength, "RotaryEmbedding");
  made_with(options_);
}

Shape RotaryEmbedding::build(const Shape& input) {
  if (input.rank() < 2) {
    fail(ErrorCode::kInvalidArgument,
         "RotaryEmbedding: expected examples of shape [steps, ..., features], got ", input);
  }
  internal::require_rotation(input[-1], options_.max_wavelength, "RotaryEmbedding");
  return input;
}

Tensor RotaryEmbedding::call(const Tensor& input, CallContext context) const {
  return internal::turned_by_step(input, 1, options_.max_wavelength,
                                  internal::steps_before(context));
}

}  // namespace tutti
