// Convolutions of images and of sequences.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/convolution.h"

#include <algorithm>

#include "tutti/model/layers/key_value_cache.h"
#include "tutti/tensor/ops/convolution_ops.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// Returns the size of the area that a dilated kernel covers.
Size2D window_of(Size2D kernel, Size2D dilation) {
  return {(kernel.height - 1) * dilation.height + 1, (kernel.width - 1) * dilation.width + 1};
}

Shape convolved_shape(const Shape& input, Size2D window, Size2D strides, Padding padding,
                      std::int64_t channels, std::string_view who) {
  return {internal::window_places(input[0], window.height, strides.height, padding, who),
          internal::window_places(input[1], window.width, strides.width, padding, who), channels};
}

Conv2dOptions convolution(Size2D strides, Size2D dilation, Padding padding,
                          std::int64_t groups = 1) {
  Conv2dOptions options;
  options.stride_h = strides.height;
  options.stride_w = strides.width;
  options.dilation_h = dilation.height;
  options.dilation_w = dilation.width;
  options.padding = padding;
  options.groups = groups;
  return options;
}

void require_groups(std::int64_t filters, std::int64_t groups, std::string_view who) {
  if (groups > 0 && filters % groups == 0) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected a number of groups that divides the ", filters,
       " filters, got ", groups);
}

/// Returns the number of input channels per group.
std::int64_t group_channels(std::int64_t channels, std::int64_t groups, std::string_view who) {
  if (channels % groups == 0) return channels / groups;
  fail(ErrorCode::kInvalidArgument, who, ": expected a number of groups that divides the ",
       channels, " channels of the input, got ", groups);
}

/// Applies the activation to the result of convolve(), fused into the convolution if the kernels
/// support that.
template <class Convolve>
Tensor activated(const ActivationFunction& activation, Conv2dOptions& op,
                 const Convolve& convolve) {
  op.activation = activation.fused;
  const Tensor y = convolve();
  return op.activation == FusedActivation::kNone ? activation(y) : y;
}

}  // namespace

// The two-dimensional convolution layer.

Conv2D::Conv2D(std::int64_t filters, Size2D kernel_size, Conv2DOptions options)
    : LayerOf("Conv2D", filters, kernel_size, std::move(options)) {
  require_groups(filters, options_.groups, "Conv2D");
  made_with(filters, kernel_size, options_);
}

Shape Conv2D::build(const Shape& input) {
  internal::require_image(input, "Conv2D");
  const std::int64_t channels = group_channels(input[2], options_.groups, "Conv2D");
  add_weight(options_.kernel_initializer,
             {kernel_size_.height, kernel_size_.width, channels, filters_}, {.name = "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_bias(options_, {filters_});
  set_output_activation(activation_.name);
  return convolved_shape(input, window_of(kernel_size_, options_.dilation_rate), options_.strides,
                         padding_, filters_, "Conv2D");
}

Tensor Conv2D::call(const Tensor& input, CallContext) const {
  Conv2dOptions op =
      convolution(options_.strides, options_.dilation_rate, padding_, options_.groups);
  if (!options_.use_bias) return activation_(conv2d(input, weight(0), op));
  return activated(activation_, op, [&] { return conv2d(input, weight(0), weight(1), op); });
}

// Depthwise, separable and transposed convolution of images.

DepthwiseConv2D::DepthwiseConv2D(Size2D kernel_size, DepthwiseConv2DOptions options)
    : LayerOf("DepthwiseConv2D", options.depth_multiplier, kernel_size, options) {
  made_with(kernel_size, options_);
}

Shape DepthwiseConv2D::build(const Shape& input) {
  internal::require_image(input, "DepthwiseConv2D");
  const std::int64_t channels = input[2] * options_.depth_multiplier;
  add_weight(options_.depthwise_initializer,
             {kernel_size_.height, kernel_size_.width, input[2], options_.depth_multiplier},
             {.name = "kernel"}, options_.depthwise_regularizer, options_.depthwise_constraint);
  add_bias(options_, {channels});
  set_output_activation(activation_.name);
  return convolved_shape(input, window_of(kernel_size_, options_.dilation_rate), options_.strides,
                         padding_, channels, "DepthwiseConv2D");
}

Tensor DepthwiseConv2D::call(const Tensor& input, CallContext) const {
  Conv2dOptions op = convolution(options_.strides, options_.dilation_rate, padding_);
  if (!options_.use_bias) return activation_(depthwise_conv2d(input, weight(0), op));
  return activated(activation_, op,
                   [&] { return depthwise_conv2d(input, weight(0), weight(1), op); });
}

SeparableConv2D::SeparableConv2D(std::int64_t filters, Size2D kernel_size,
                                 SeparableConv2DOptions options)
    : LayerOf("SeparableConv2D", filters, kernel_size, std::move(options)) {
  internal::require_positive(options_.depth_multiplier, "SeparableConv2D", "depth_multiplier");
  made_with(filters, kernel_size, options_);
}

Shape SeparableConv2D::build(const Shape& input) {
  internal::require_image(input, "SeparableConv2D");
  const std::int64_t multiplier = options_.depth_multiplier;
  add_weight(options_.depthwise_initializer,
             {kernel_size_.height, kernel_size_.width, input[2], multiplier},
             {.name = "depthwise_kernel"}, options_.depthwise_regularizer,
             options_.depthwise_constraint);
  add_weight(options_.pointwise_initializer, {1, 1, input[2] * multiplier, filters_},
             {.name = "pointwise_kernel"}, options_.pointwise_regularizer,
             options_.pointwise_constraint);
  add_bias(options_, {filters_});
  set_output_activation(activation_.name);
  return convolved_shape(input, window_of(kernel_size_, options_.dilation_rate), options_.strides,
                         padding_, filters_, "SeparableConv2D");
}

Tensor SeparableConv2D::call(const Tensor& input, CallContext) const {
  const Tensor x = depthwise_conv2d(
      input, weight(0), convolution(options_.strides, options_.dilation_rate, padding_));
  Conv2dOptions op;
  if (!options_.use_bias) return activation_(conv2d(x, weight(1), op));
  return activated(activation_, op, [&] { return conv2d(x, weight(1), weight(2), op); });
}

Conv2DTranspose::Conv2DTranspose(std::int64_t filters, Size2D kernel_size,
                                 Conv2DTransposeOptions options)
    : LayerOf("Conv2DTranspose", filters, kernel_size, std::move(options)) {
  made_with(filters, kernel_size, options_);
}

Shape Conv2DTranspose::build(const Shape& input) {
  internal::require_image(input, "Conv2DTranspose");
  add_weight(options_.kernel_initializer,
             {kernel_size_.height, kernel_size_.width, filters_, input[2]}, {.name = "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_bias(options_, {filters_});
  set_output_activation(activation_.name);
  const Size2D window = window_of(kernel_size_, options_.dilation_rate);
  auto length = [&](std::int64_t size, std::int64_t stride, std::int64_t covered) {
    const std::int64_t beyond =
        padding_ == Padding::kValid ? std::max<std::int64_t>(0, covered - stride) : 0;
    return size * stride + beyond;
  };
  return {length(input[0], options_.strides.height, window.height),
          length(input[1], options_.strides.width, window.width), filters_};
}

Tensor Conv2DTranspose::call(const Tensor& input, CallContext) const {
  Conv2dTransposeOptions op;
  op.stride_h = options_.strides.height;
  op.stride_w = options_.strides.width;
  op.dilation_h = options_.dilation_rate.height;
  op.dilation_w = options_.dilation_rate.width;
  op.padding = padding_;
  return activation_(options_.use_bias ? conv2d_transpose(input, weight(0), weight(1), op)
                                       : conv2d_transpose(input, weight(0), op));
}

// Convolution of sequences, which are treated as images of height 1.

Conv1D::Conv1D(std::int64_t filters, std::int64_t kernel_size, Conv1DOptions options)
    : LayerOf(options.name, options.input_shape),
      filters_(filters),
      kernel_size_(kernel_size),
      options_(std::move(options)),
      padding_(options_.padding == "causal" ? Padding::kValid
                                            : internal::parse_padding(options_.padding, "Conv1D")),
      activation_(find_activation(options_.activation)) {
  internal::require_positive(filters, "Conv1D", "number of filters");
  internal::require_positive(kernel_size, "Conv1D", "kernel size");
  internal::require_positive(options_.strides, "Conv1D", "stride");
  internal::require_positive(options_.dilation_rate, "Conv1D", "dilation rate");
  internal::require_positive(options_.groups, "Conv1D", "number of groups");
  require_groups(filters, options_.groups, "Conv1D");
  made_with(filters, kernel_size, options_);
}

Shape Conv1D::build(const Shape& input) {
  internal::require_sequence(input, "Conv1D");
  const std::int64_t channels = group_channels(input[1], options_.groups, "Conv1D");
  add_weight(options_.kernel_initializer, {kernel_size_, channels, filters_}, {.name = "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_bias(options_, {filters_});
  set_output_activation(activation_.name);
  const std::int64_t window = (kernel_size_ - 1) * options_.dilation_rate + 1;
  const std::int64_t before = options_.padding == "causal" ? window - 1 : 0;
  return {internal::window_places(input[0] + before, window, options_.strides, padding_, "Conv1D"),
          filters_};
}

Tensor Conv1D::call(const Tensor& input, CallContext context) const {
  if (kernel_size_ > 1) internal::require_no_cache(context, "Conv1D");
  Conv2dOptions op =
      convolution({1, options_.strides}, {1, options_.dilation_rate}, padding_, options_.groups);
  const std::int64_t before = (kernel_size_ - 1) * options_.dilation_rate;
  const Tensor x = options_.padding == "causal" ? pad(input, {0, before, 0}, {0, 0, 0}) : input;
  const Tensor image = expand_dims(x, 1), kernel = expand_dims(weight(0), 0);
  if (!options_.use_bias) return activation_(squeeze(conv2d(image, kernel, op), 1));
  return activated(activation_, op,
                   [&] { return squeeze(conv2d(image, kernel, weight(1), op), 1); });
}

}  // namespace tutti
