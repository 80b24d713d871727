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
  internal::require_positive(options_.dilation_rate, "Conv2D", "dilation rate");
  if (options_.groups <= 0 || filters % options_.groups != 0) {
    fail(ErrorCode::kInvalidArgument, "Conv2D: expected groups that divide the ", filters,
         " filters, got ", options_.groups);
  }
}

Shape Conv2D::build(const Shape& input) {
  internal::require_image(input, "Conv2D");
  if (input[2] % options_.groups != 0) {
    fail(ErrorCode::kInvalidArgument, "Conv2D: ", input[2], " channels cannot be cut into ",
         options_.groups, " equal groups");
  }
  add_weight(options_.kernel_initializer,
             {kernel_size_.height, kernel_size_.width, input[2] / options_.groups, filters_},
             {.name = "kernel"}, options_.kernel_regularizer, options_.kernel_constraint);
  if (options_.use_bias) {
    add_weight(options_.bias_initializer, {filters_}, {.name = "bias"}, options_.bias_regularizer,
               options_.bias_constraint);
  }
  set_output_activation(activation_.name);
  const std::int64_t rows = (kernel_size_.height - 1) * options_.dilation_rate.height + 1;
  const std::int64_t columns = (kernel_size_.width - 1) * options_.dilation_rate.width + 1;
  return {internal::window_places(input[0], rows, options_.strides.height, padding_, "Conv2D"),
          internal::window_places(input[1], columns, options_.strides.width, padding_, "Conv2D"),
          filters_};
}

Tensor Conv2D::call(const Tensor& input, CallContext) const {
  Conv2dOptions op;
  op.stride_h = options_.strides.height;
  op.stride_w = options_.strides.width;
  op.padding = padding_;
  op.dilation_h = options_.dilation_rate.height;
  op.dilation_w = options_.dilation_rate.width;
  op.groups = options_.groups;
  if (!options_.use_bias) return activation_(conv2d(input, weight(0), op));
  op.activation = activation_.fused;
  const Tensor y = conv2d(input, weight(0), weight(1), op);
  return op.activation == FusedActivation::kNone ? activation_(y) : y;
}

}  // namespace tutti
