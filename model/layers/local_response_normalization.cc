// Local response normalisation as a layer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/local_response_normalization.h"

#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/normalization.h"

namespace tutti {

LocalResponseNormalization::LocalResponseNormalization(LocalResponseNormalizationOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {}

Shape LocalResponseNormalization::build(const Shape& input) {
  internal::require_image(input, "LocalResponseNormalization");
  return input;
}

Tensor LocalResponseNormalization::call(const Tensor& input, CallContext) const {
  LrnAttributes attributes;
  attributes.depth_radius = options_.depth_radius;
  attributes.bias = options_.bias;
  attributes.alpha = options_.alpha;
  attributes.beta = options_.beta;
  return local_response_normalization(input, attributes);
}

}  // namespace tutti
