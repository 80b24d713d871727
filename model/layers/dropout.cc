// The dropout layer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/dropout.h"

#include "tutti/tensor/ops/random_ops.h"

namespace tutti {

Dropout::Dropout(double rate, DropoutOptions options)
    : LayerOf(options.name, options.input_shape), rate_(rate) {
  if (!(rate >= 0.0 && rate < 1.0))
    fail(ErrorCode::kInvalidArgument, "Dropout: expected a rate in [0, 1), got ", rate);
}

Shape Dropout::build(const Shape& input) { return input; }

Tensor Dropout::call(const Tensor& input, CallContext context) const {
  if (!context.training || rate_ == 0.0) return input;
  return dropout(input, rate_, next_random_key());
}

}  // namespace tutti
