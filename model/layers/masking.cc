// The layer that says which steps of a sequence do not count.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/masking.h"

#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

Masking::Masking(double mask_value, MaskingOptions options)
    : LayerOf(options.name, options.input_shape), mask_value_(mask_value) {}

Shape Masking::build(const Shape& input) {
  internal::require_sequence(input, "Masking");
  return input;
}

Tensor Masking::call(const Tensor& input, CallContext) const {
  const Tensor mask = reduce_any(not_equal(input, mask_value_), {.axes = {2}});
  const Tensor result = where(expand_dims(mask, 2), input, 0.0);
  MaskScope::set_mask(result, mask);
  return result;
}

}  // namespace tutti
