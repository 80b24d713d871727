// The layer that scales inputs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/rescaling.h"

#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

Rescaling::Rescaling(double scale, RescalingOptions options)
    : LayerOf(options.name, options.input_shape), scale_(scale), offset_(options.offset) {}

Shape Rescaling::build(const Shape& input) { return input; }

Tensor Rescaling::call(const Tensor& input, CallContext) const {
  const Tensor x = is_floating(input.dtype()) ? input : cast(input, DType::kFloat32);
  return x * scale_ + offset_;
}

}  // namespace tutti
