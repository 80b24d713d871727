// Normalisations of each example by itself.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/normalizations.h"

#include <algorithm>

#include "tutti/model/layers/in_float32.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/normalization.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// Axes of a batch of such examples, from 1, ascending. Throws for the batch and beyond.
std::vector<int> checked_axes(const Shape& example, std::vector<int> axes, std::string_view who) {
  for (int& axis : axes) {
    const int given = axis;
    if (axis < 0) axis += example.rank() + 1;
    if (axis < 1 || axis > example.rank()) {
      fail(ErrorCode::kInvalidArgument, who, ": expected axes from 1 to ", example.rank(),
           " (the batch is 0) for examples of shape ", example, ", got ", given);
    }
  }
  std::ranges::sort(axes);
  if (axes.empty() || std::ranges::adjacent_find(axes) != axes.end()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected different axes, at least one, got [",
         join(axes), "]");
  }
  return axes;
}

/// (x - mean) / sqrt(variance + epsilon) over the axes.
Tensor standardized(const Tensor& x, const std::vector<int>& axes, double epsilon) {
  const ReduceOptions over{.axes = axes, .keep_dims = true};
  const Tensor centered = x - reduce_mean(x, over);
  return centered * rsqrt(reduce_mean(square(centered), over) + epsilon);
}

}  // namespace

LayerNormalization::LayerNormalization(LayerNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  if (!(options_.epsilon > 0.0)) {
    fail(ErrorCode::kInvalidArgument, "LayerNormalization: expected a positive epsilon, got ",
         options_.epsilon);
  }
}

Shape LayerNormalization::build(const Shape& input) {
  std::vector<std::int64_t> dims;
  for (const int axis : checked_axes(input, options_.axes, "LayerNormalization"))
    dims.push_back(input[axis - 1]);
  const Shape shape{std::span<const std::int64_t>(dims)};
  if (options_.scale)
    add_weight(options_.gamma_initializer, shape, {.name = "gamma"}, options_.gamma_regularizer);
  if (options_.center)
    add_weight(options_.beta_initializer, shape, {.name = "beta"}, options_.beta_regularizer);
  return input;
}

Tensor LayerNormalization::call(const Tensor& input, CallContext) const {
  return internal::in_float32(input, [&](const Tensor& x) { return normalized(x); });
}

Tensor LayerNormalization::normalized(const Tensor& input) const {
  // Not kept by build(): copies of the layer that were made before it share its weights alone.
  const std::vector<int> axes =
      checked_axes(input.shape().without_axis(0), options_.axes, "LayerNormalization");
  const bool trailing = axes.front() == input.rank() - static_cast<int>(axes.size());
  if (trailing && options_.scale && options_.center) {
    return layer_norm(input, weight(0), weight(1),
                      {static_cast<int>(axes.size()), options_.epsilon});
  }
  // Weights as they broadcast: 1 where an axis is not normalised.
  Shape wide = input.shape();
  for (int axis = 0; axis < wide.rank(); ++axis)
    if (std::ranges::find(axes, axis) == axes.end()) wide = wide.with_dim(axis, 1);
  Tensor y = standardized(input, axes, options_.epsilon);
  if (options_.scale) y = y * reshape(weight(0).value(), wide);
  if (options_.center) y = y + reshape(weight(options_.scale ? 1 : 0).value(), wide);
  return y;
}

GroupNormalization::GroupNormalization(std::int64_t groups, GroupNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), groups_(groups), options_(std::move(options)) {
  if (groups <= 0 && groups != -1)
    fail(ErrorCode::kInvalidArgument,
         "GroupNormalization: expected a positive number of groups, or -1, got ", groups);
}

Shape GroupNormalization::build(const Shape& input) {
  if (input.rank() == 0)
    fail(ErrorCode::kInvalidArgument, "expected examples of shape [..., channels], got scalars");
  const std::int64_t channels = input[-1], groups = groups_of(channels);
  if (channels % groups != 0) {
    fail(ErrorCode::kInvalidArgument, "GroupNormalization: ", channels,
         " channels cannot be cut into ", groups, " equal groups; expected a divisor of ",
         channels);
  }
  if (options_.scale) {
    add_weight(options_.gamma_initializer, {channels}, {.name = "gamma"},
               options_.gamma_regularizer);
  }
  if (options_.center)
    add_weight(options_.beta_initializer, {channels}, {.name = "beta"}, options_.beta_regularizer);
  return input;
}

std::int64_t GroupNormalization::groups_of(std::int64_t channels) const {
  return groups_ == -1 ? std::max<std::int64_t>(1, channels) : groups_;
}

Tensor GroupNormalization::call(const Tensor& input, CallContext) const {
  return internal::in_float32(input, [&](const Tensor& x) { return normalized(x); });
}

Tensor GroupNormalization::normalized(const Tensor& input) const {
  const std::int64_t groups = groups_of(input.shape()[-1]);
  if (options_.scale && options_.center)
    return group_norm(input, weight(0), weight(1), {groups, options_.epsilon});
  const std::int64_t rows = input.shape()[0], channels = input.shape()[-1];
  std::int64_t places = 1;
  for (int axis = 1; axis + 1 < input.rank(); ++axis) places *= input.shape()[axis];
  const Tensor grouped = reshape(input, Shape{rows, places, groups, channels / groups});
  Tensor y = reshape(standardized(grouped, {1, 3}, options_.epsilon), input.shape());
  if (options_.scale) y = y * weight(0).value();
  if (options_.center) y = y + weight(options_.scale ? 1 : 0).value();
  return y;
}

UnitNormalization::UnitNormalization(UnitNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {}

Shape UnitNormalization::build(const Shape& input) {
  (void)checked_axes(input, options_.axes, "UnitNormalization");
  return input;
}

Tensor UnitNormalization::call(const Tensor& input, CallContext) const {
  return internal::in_float32(input, [&](const Tensor& x) {
    const Tensor squares = reduce_sum(square(x), {.axes = options_.axes, .keep_dims = true});
    return x * rsqrt(maximum(squares, 1e-24));  // vectors shorter than Keras's 1e-12 stay short
  });
}

}  // namespace tutti
