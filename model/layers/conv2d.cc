// The two-dimensional convolution layer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/conv2d.h"

#include "tutti/tensor/ops/convolution.h"

namespace tutti {

Conv2D::Conv2D(std::int64_t filters, Size2D kernel_size, Conv2DOptions options)
    : LayerOf(options.name, options.input_shape),
      filters_(filters),
      kernel_size_(kernel_size),
      options_(std::move(options)),
      padding_(internal::parse_padding(options_.padding, "Conv2D")),
      activation_(find_activation(options_.activation)) {
  if (filters <= 0)
    fail(ErrorCode::kInvalidArgument, "Conv2D: expected a positive number of filters, got ",
         filters);
  internal::require_positive(kernel_size, "Conv2D", "kernel size");
  internal::require_positive(options_.strides, "Conv2D", "stride");
}

Shape Conv2D::build(const Shape& input) {
  internal::require_image(input, "Conv2D");
  add_weight(options_.kernel_initializer,
             {kernel_size_.height, kernel_size_.width, input[2], filters_}, {.name = "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  if (options_.use_bias) {
    add_weight(options_.bias_initializer, {filters_}, {.name = "bias"}, options_.bias_regularizer,
               options_.bias_constraint);
  }
  set_output_activation(activation_.name);
  return {internal::window_places(input[0], kernel_size_.height, options_.strides.height, padding_,
                                  "Conv2D"),
          internal::window_places(input[1], kernel_size_.width, options_.strides.width, padding_,
                                  "Conv2D"),
          filters_};
}

Tensor Conv2D::call(const Tensor& input, CallContext) const {
  Conv2dOptions op;
  op.stride_h = options_.strides.height;
  op.stride_w = options_.strides.width;
  op.padding = padding_;
  if (!options_.use_bias) return activation_(conv2d(input, weight(0), op));
  op.activation = activation_.fused;
  const Tensor y = conv2d(input, weight(0), weight(1), op);
  return op.activation == FusedActivation::kNone ? activation_(y) : y;
}

}  // namespace tutti
