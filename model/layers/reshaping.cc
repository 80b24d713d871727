// Layers that change the shape of examples.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/reshaping.h"

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

}  // namespace tutti
