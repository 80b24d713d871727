// A layer applied to every step of a sequence.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/time_distributed.h"

#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

TimeDistributed::TimeDistributed(std::shared_ptr<Layer> layer, TimeDistributedOptions options)
    : LayerOf(options.name, options.input_shape), layer_(std::move(layer)) {}

Shape TimeDistributed::build(const Shape& input) {
  if (input.rank() == 0) {
    fail(ErrorCode::kInvalidArgument,
         "TimeDistributed: expected examples of shape [steps, ...], got scalars");
  }
  return add_layer(*layer_, input.without_axis(0)).with_front(input[0]);
}

Tensor TimeDistributed::call(const Tensor& input, CallContext context) const {
  const std::int64_t rows = input.shape()[0], steps = input.shape()[1];
  const Shape step = input.shape().without_axis(0).without_axis(0);
  const Tensor y = (*layer_)(reshape(input, step.with_front(rows * steps)), context);
  return reshape(y, y.shape().without_axis(0).with_front(steps).with_front(rows));
}

}  // namespace tutti
