// Layers that change the shape of examples.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/reshaping.h"

#include <algorithm>

#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// `target` with its -1 replaced. Throws kInvalidArgument when the elements do not fit.
Shape resolved_target(const Shape& input, std::vector<std::int64_t> target) {
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& dim : target) {
    if (dim == -1 && !open) {
      open = &dim;
    } else if (dim < 0) {
      fail(ErrorCode::kInvalidArgument, "Reshape: expected sizes and at most one -1, got [",
           join(target), "]");
    } else {
      known *= dim;
    }
  }
  const std::int64_t elements = input.num_elements();
  if (open) *open = known > 0 ? elements / known : 0;
  const Shape shape{std::span<const std::int64_t>(target)};
  if (shape.num_elements() != elements) {
    fail(ErrorCode::kInvalidArgument, "Reshape: examples of shape ", input, " have ", elements,
         " elements, which do not fit into ", shape);
  }
  return shape;
}

}  // namespace

Flatten::Flatten(ReshapingOptions options) : LayerOf(options.name, options.input_shape) {}

Shape Flatten::build(const Shape& input) { return {input.num_elements()}; }

Tensor Flatten::call(const Tensor& input, CallContext) const {
  return input.rank() == 1 ? expand_dims(input, -1) : flatten_rows(input);
}

Reshape::Reshape(std::vector<std::int64_t> target, ReshapingOptions options)
    : LayerOf(options.name, options.input_shape), target_(std::move(target)) {}

Shape Reshape::build(const Shape& input) { return resolved_target(input, target_); }

Tensor Reshape::call(const Tensor& input, CallContext) const {
  return reshape(input, output_shape().with_front(input.shape()[0]));
}

Permute::Permute(std::vector<int> permutation, ReshapingOptions options)
    : LayerOf(options.name, options.input_shape), permutation_(std::move(permutation)) {
  for (int axis = 1; axis <= static_cast<int>(permutation_.size()); ++axis) {
    if (std::ranges::count(permutation_, axis) == 1) continue;
    fail(ErrorCode::kInvalidArgument, "Permute: expected each axis from 1 to ", permutation_.size(),
         " once, got [", join(permutation_), "]");
  }
}

Shape Permute::build(const Shape& input) {
  if (input.rank() != static_cast<int>(permutation_.size())) {
    fail(ErrorCode::kInvalidArgument, "Permute: expected examples of rank ", permutation_.size(),
         ", got ", input);
  }
  Shape output = input;
  for (int i = 0; i < input.rank(); ++i)
    output = output.with_dim(i, input[permutation_[static_cast<std::size_t>(i)] - 1]);
  return output;
}

Tensor Permute::call(const Tensor& input, CallContext) const {
  std::vector<int> order = {0};
  order.insert(order.end(), permutation_.begin(), permutation_.end());
  return transpose(input, order);
}

RepeatVector::RepeatVector(std::int64_t times, ReshapingOptions options)
    : LayerOf(options.name, options.input_shape), times_(times) {
  if (times <= 0)
    fail(ErrorCode::kInvalidArgument, "RepeatVector: expected a positive number, got ", times);
}

Shape RepeatVector::build(const Shape& input) {
  if (input.rank() != 1) {
    fail(ErrorCode::kInvalidArgument, "RepeatVector: expected examples of shape [features], got ",
         input);
  }
  return {times_, input[0]};
}

Tensor RepeatVector::call(const Tensor& input, CallContext) const {
  return broadcast_to(expand_dims(input, 1), Shape{input.shape()[0], times_, input.shape()[1]});
}

}  // namespace tutti
