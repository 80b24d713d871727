// Convolution and pooling of sequences: images of width 1 or height 1.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/conv1d.h"

#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/convolution.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// [batch, steps, channels] -> [batch, 1, steps, channels].
Tensor as_image(const Tensor& x) { return expand_dims(x, 1); }
Tensor as_sequence(const Tensor& x) { return squeeze(x, 1); }

Pool2dOptions pool_options(std::int64_t window, std::int64_t strides, Padding padding) {
  Pool2dOptions options;
  options.window_h = options.stride_h = 1;
  options.window_w = window;
  options.stride_w = strides;
  options.padding = padding;
  return options;
}

std::int64_t checked(std::int64_t size, std::string_view who, std::string_view what) {
  if (size > 0) return size;
  fail(ErrorCode::kInvalidArgument, who, ": expected a positive ", what, ", got ", size);
}

Shape pooled_shape(const Shape& input, std::int64_t window, std::int64_t strides, Padding padding,
                   std::string_view who) {
  internal::require_sequence(input, who);
  return {internal::window_places(input[0], window, strides, padding, who), input[1]};
}

Shape channels_of(const Shape& input, std::string_view who) {
  internal::require_sequence(input, who);
  return {input[1]};
}

}  // namespace

Conv1D::Conv1D(std::int64_t filters, std::int64_t kernel_size, Conv1DOptions options)
    : LayerOf(options.name, options.input_shape),
      filters_(checked(filters, "Conv1D", "number of filters")),
      kernel_size_(checked(kernel_size, "Conv1D", "kernel size")),
      options_(std::move(options)),
      padding_(options_.padding == "causal" ? Padding::kValid
                                            : internal::parse_padding(options_.padding, "Conv1D")),
      activation_(find_activation(options_.activation)) {
  checked(options_.strides, "Conv1D", "stride");
  checked(options_.dilation_rate, "Conv1D", "dilation rate");
  if (checked(options_.groups, "Conv1D", "number of groups"); filters % options_.groups != 0) {
    fail(ErrorCode::kInvalidArgument, "Conv1D: expected groups that divide the ", filters,
         " filters, got ", options_.groups);
  }
}

Shape Conv1D::build(const Shape& input) {
  internal::require_sequence(input, "Conv1D");
  if (input[1] % options_.groups != 0) {
    fail(ErrorCode::kInvalidArgument, "Conv1D: ", input[1], " channels cannot be cut into ",
         options_.groups, " equal groups");
  }
  add_weight(options_.kernel_initializer, {kernel_size_, input[1] / options_.groups, filters_},
             {.name = "kernel"}, options_.kernel_regularizer, options_.kernel_constraint);
  if (options_.use_bias) {
    add_weight(options_.bias_initializer, {filters_}, {.name = "bias"}, options_.bias_regularizer,
               options_.bias_constraint);
  }
  set_output_activation(activation_.name);
  const std::int64_t window = (kernel_size_ - 1) * options_.dilation_rate + 1;
  const std::int64_t before = options_.padding == "causal" ? window - 1 : 0;
  return {internal::window_places(input[0] + before, window, options_.strides, padding_, "Conv1D"),
          filters_};
}

Tensor Conv1D::call(const Tensor& input, CallContext) const {
  Conv2dOptions op;
  op.stride_w = options_.strides;
  op.padding = padding_;
  op.dilation_w = options_.dilation_rate;
  op.groups = options_.groups;
  const std::int64_t before = (kernel_size_ - 1) * options_.dilation_rate;
  const Tensor x = options_.padding == "causal" ? pad(input, {0, before, 0}, {0, 0, 0}) : input;
  const Tensor kernel = expand_dims(weight(0), 0);
  if (!options_.use_bias) return activation_(as_sequence(conv2d(as_image(x), kernel, op)));
  op.activation = activation_.fused;
  const Tensor y = as_sequence(conv2d(as_image(x), kernel, weight(1), op));
  return op.activation == FusedActivation::kNone ? activation_(y) : y;
}

MaxPooling1D::MaxPooling1D(std::int64_t pool_size, Pooling1DOptions options)
    : LayerOf(options.name, options.input_shape),
      pool_size_(checked(pool_size, "MaxPooling1D", "window")),
      strides_(checked(options.strides.value_or(pool_size), "MaxPooling1D", "stride")),
      padding_(internal::parse_padding(options.padding, "MaxPooling1D")) {}

Shape MaxPooling1D::build(const Shape& input) {
  return pooled_shape(input, pool_size_, strides_, padding_, "MaxPooling1D");
}

Tensor MaxPooling1D::call(const Tensor& input, CallContext) const {
  return as_sequence(max_pool2d(as_image(input), pool_options(pool_size_, strides_, padding_)));
}

AveragePooling1D::AveragePooling1D(std::int64_t pool_size, Pooling1DOptions options)
    : LayerOf(options.name, options.input_shape),
      pool_size_(checked(pool_size, "AveragePooling1D", "window")),
      strides_(checked(options.strides.value_or(pool_size), "AveragePooling1D", "stride")),
      padding_(internal::parse_padding(options.padding, "AveragePooling1D")) {}

Shape AveragePooling1D::build(const Shape& input) {
  return pooled_shape(input, pool_size_, strides_, padding_, "AveragePooling1D");
}

Tensor AveragePooling1D::call(const Tensor& input, CallContext) const {
  return as_sequence(average_pool2d(as_image(input), pool_options(pool_size_, strides_, padding_)));
}

GlobalAveragePooling1D::GlobalAveragePooling1D(GlobalPooling1DOptions options)
    : LayerOf(options.name, options.input_shape) {}

Shape GlobalAveragePooling1D::build(const Shape& input) {
  return channels_of(input, "GlobalAveragePooling1D");
}

Tensor GlobalAveragePooling1D::call(const Tensor& input, CallContext) const {
  const Tensor mask = MaskScope::mask_of(input);
  if (!mask.defined()) return global_average_pool2d(as_image(input));
  const Tensor seen = expand_dims(mask, 2);
  const Tensor count = reduce_sum(cast(seen, input.dtype()), {.axes = {1}});
  return reduce_sum(where(seen, input, 0.0), {.axes = {1}}) / maximum(count, 1.0);
}

GlobalMaxPooling1D::GlobalMaxPooling1D(GlobalPooling1DOptions options)
    : LayerOf(options.name, options.input_shape) {}

Shape GlobalMaxPooling1D::build(const Shape& input) {
  return channels_of(input, "GlobalMaxPooling1D");
}

Tensor GlobalMaxPooling1D::call(const Tensor& input, CallContext) const {
  return global_max_pool2d(as_image(input));
}

}  // namespace tutti
