// Pooling layers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/pooling.h"

#include "tutti/tensor/ops/convolution.h"

namespace tutti {
namespace {

Shape pooled_shape(const Shape& input, Size2D window, Size2D strides, Padding padding,
                   std::string_view who) {
  internal::require_image(input, who);
  return {internal::window_places(input[0], window.height, strides.height, padding, who),
          internal::window_places(input[1], window.width, strides.width, padding, who), input[2]};
}

Pool2dOptions pool_options(Size2D window, Size2D strides, Padding padding) {
  Pool2dOptions options;
  options.window_h = window.height;
  options.window_w = window.width;
  options.stride_h = strides.height;
  options.stride_w = strides.width;
  options.padding = padding;
  return options;
}

Size2D checked_strides(const Pooling2DOptions& options, Size2D window, std::string_view who) {
  internal::require_positive(window, who, "window");
  const Size2D strides = options.strides.value_or(window);
  internal::require_positive(strides, who, "stride");
  return strides;
}

}  // namespace

MaxPooling2D::MaxPooling2D(Size2D pool_size, Pooling2DOptions options)
    : LayerOf(options.name, options.input_shape),
      pool_size_(pool_size),
      strides_(checked_strides(options, pool_size, "MaxPooling2D")),
      padding_(internal::parse_padding(options.padding, "MaxPooling2D")) {}

Shape MaxPooling2D::build(const Shape& input) {
  return pooled_shape(input, pool_size_, strides_, padding_, "MaxPooling2D");
}

Tensor MaxPooling2D::call(const Tensor& input, CallContext) const {
  return max_pool2d(input, pool_options(pool_size_, strides_, padding_));
}

AveragePooling2D::AveragePooling2D(Size2D pool_size, Pooling2DOptions options)
    : LayerOf(options.name, options.input_shape),
      pool_size_(pool_size),
      strides_(checked_strides(options, pool_size, "AveragePooling2D")),
      padding_(internal::parse_padding(options.padding, "AveragePooling2D")) {}

Shape AveragePooling2D::build(const Shape& input) {
  return pooled_shape(input, pool_size_, strides_, padding_, "AveragePooling2D");
}

Tensor AveragePooling2D::call(const Tensor& input, CallContext) const {
  return average_pool2d(input, pool_options(pool_size_, strides_, padding_));
}

GlobalAveragePooling2D::GlobalAveragePooling2D(GlobalPooling2DOptions options)
    : LayerOf(options.name, options.input_shape) {}

Shape GlobalAveragePooling2D::build(const Shape& input) {
  internal::require_image(input, "GlobalAveragePooling2D");
  return {input[2]};
}

Tensor GlobalAveragePooling2D::call(const Tensor& input, CallContext) const {
  return global_average_pool2d(input);
}

GlobalMaxPooling2D::GlobalMaxPooling2D(GlobalPooling2DOptions options)
    : LayerOf(options.name, options.input_shape) {}

Shape GlobalMaxPooling2D::build(const Shape& input) {
  internal::require_image(input, "GlobalMaxPooling2D");
  return {input[2]};
}

Tensor GlobalMaxPooling2D::call(const Tensor& input, CallContext) const {
  return global_max_pool2d(input);
}

}  // namespace tutti
