// Pooling of images and of sequences.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/pooling.h"

#include "tutti/model/layers/key_value_cache.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// Maps [batch, steps, channels] to [batch, 1, steps, channels].
Tensor as_image(const Tensor& x) { return expand_dims(x, 1); }

Pool2dOptions windows_of(std::string_view who, Size2D window, const Pooling2DOptions& options) {
  internal::require_positive(window, who, "window");
  const Size2D strides = options.strides.value_or(window);
  internal::require_positive(strides, who, "stride");
  return {window.height, window.width, strides.height, strides.width,
          internal::parse_padding(options.padding, who)};
}

Pool2dOptions windows_of(std::string_view who, std::int64_t window,
                         const Pooling1DOptions& options) {
  internal::require_positive(window, who, "window");
  const std::int64_t strides = options.strides.value_or(window);
  internal::require_positive(strides, who, "stride");
  return {1, window, 1, strides, internal::parse_padding(options.padding, who)};
}

}  // namespace

Pooling::Pooling(std::string_view who, Operation operation, Size2D window,
                 const Pooling2DOptions& options)
    : Layer(options.name, options.input_shape),
      operation_(operation),
      windows_(windows_of(who, window, options)),
      of_sequences_(false) {}

Pooling::Pooling(std::string_view who, Operation operation, std::int64_t window,
                 const Pooling1DOptions& options)
    : Layer(options.name, options.input_shape),
      operation_(operation),
      windows_(windows_of(who, window, options)),
      of_sequences_(true) {}

Shape Pooling::build(const Shape& input) {
  const auto places = [&](std::int64_t length, std::int64_t window, std::int64_t stride) {
    return internal::window_places(length, window, stride, windows_.padding, type_name());
  };
  if (of_sequences_) {
    internal::require_sequence(input, type_name());
    return {places(input[0], windows_.window_w, windows_.stride_w), input[1]};
  }
  internal::require_image(input, type_name());
  return {places(input[0], windows_.window_h, windows_.stride_h),
          places(input[1], windows_.window_w, windows_.stride_w), input[2]};
}

Tensor Pooling::call(const Tensor& input, CallContext context) const {
  if (of_sequences_) internal::require_no_cache(context, type_name());
  if (!of_sequences_) return operation_(input, windows_);
  return squeeze(operation_(as_image(input), windows_), 1);
}

MaxPooling2D::MaxPooling2D(Size2D pool_size, Pooling2DOptions options)
    : LayerOf("MaxPooling2D", &max_pool2d, pool_size, options) {
  made_with(pool_size, options);
}
AveragePooling2D::AveragePooling2D(Size2D pool_size, Pooling2DOptions options)
    : LayerOf("AveragePooling2D", &average_pool2d, pool_size, options) {
  made_with(pool_size, options);
}
MaxPooling1D::MaxPooling1D(std::int64_t pool_size, Pooling1DOptions options)
    : LayerOf("MaxPooling1D", &max_pool2d, pool_size, options) {
  made_with(pool_size, options);
}
AveragePooling1D::AveragePooling1D(std::int64_t pool_size, Pooling1DOptions options)
    : LayerOf("AveragePooling1D", &average_pool2d, pool_size, options) {
  made_with(pool_size, options);
}

Shape GlobalPooling::build(const Shape& input) {
  if (of_sequences_) {
    internal::require_sequence(input, type_name());
  } else {
    internal::require_image(input, type_name());
  }
  return {input[-1]};
}

Tensor GlobalPooling::call(const Tensor& input, CallContext context) const {
  if (of_sequences_) internal::require_no_cache(context, type_name());
  return operation_(of_sequences_ ? as_image(input) : input);
}

GlobalAveragePooling2D::GlobalAveragePooling2D(LayerOptions options)
    : LayerOf(&global_average_pool2d, false, std::move(options)) {
  made_with();
}
GlobalMaxPooling2D::GlobalMaxPooling2D(LayerOptions options)
    : LayerOf(&global_max_pool2d, false, std::move(options)) {
  made_with();
}
GlobalAveragePooling1D::GlobalAveragePooling1D(LayerOptions options)
    : LayerOf(&global_average_pool2d, true, std::move(options)) {
  made_with();
}
GlobalMaxPooling1D::GlobalMaxPooling1D(LayerOptions options)
    : LayerOf(&global_max_pool2d, true, std::move(options)) {
  made_with();
}

Tensor GlobalAveragePooling1D::call(const Tensor& input, CallContext context) const {
  const Tensor mask = MaskScope::mask_of(input);
  if (!mask.defined()) return GlobalPooling::call(input, context);
  const Tensor seen = expand_dims(mask, 2);
  const Tensor count = reduce_sum(cast(seen, input.dtype()), {.axes = {1}});
  return reduce_sum(where(seen, input, 0.0), {.axes = {1}}) / maximum(count, 1.0);
}

}  // namespace tutti
