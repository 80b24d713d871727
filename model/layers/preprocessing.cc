// Layers that prepare images: rescaling, cropping, and random changes in training.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/preprocessing.h"

#include "model/layers/in_float32.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// The layer that scales inputs.

namespace {

Tensor as_floats(const Tensor& input) {
  return is_floating(input.dtype()) ? input : cast(input, DType::kFloat32);
}

}  // namespace

Rescaling::Rescaling(double scale, RescalingOptions options)
    : LayerOf(options.name, options.input_shape), scale_(scale), offset_(options.offset) {
  made_with(scale, options);
}

Shape Rescaling::build(const Shape& input) { return input; }

Tensor Rescaling::call(const Tensor& input, CallContext) const {
  return as_floats(input) * scale_ + offset_;
}

// Layers that change images randomly during training.

namespace {

double checked_factor(double factor, std::string_view who) {
  if (factor >= 0.0 && factor <= 1.0) return factor;
  fail(ErrorCode::kInvalidArgument, who, ": expected a factor in [0, 1], got ", factor);
}

std::array<double, 2> checked_range(std::array<double, 2> range, std::string_view who) {
  if (range[0] < range[1]) return range;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected a value_range {low, high} with low < high, got {", range[0], ", ", range[1],
       "}");
}

/// Returns one random number per image, [batch, 1, 1, 1], in [low, high).
Tensor per_picture(const Tensor& x, const RandomKey& key, double low, double high) {
  return random_uniform({x.shape()[0], 1, 1, 1}, key, low, high, x.dtype(), x.device());
}

Tensor flip_some(const Tensor& x, int axis, const RandomKey& key) {
  return where(less(per_picture(x, key, 0.0, 1.0), 0.5), reverse(x, {axis}), x);
}

}  // namespace

RandomFlip::RandomFlip(RandomFlipOptions options)
    : LayerOf(options.name, options.input_shape),
      horizontal_(options.mode != "vertical"),
      vertical_(options.mode != "horizontal") {
  if (horizontal_ && vertical_ && options.mode != "horizontal_and_vertical") {
    fail(ErrorCode::kInvalidArgument,
         "RandomFlip: expected mode 'horizontal', 'vertical' or 'horizontal_and_vertical', got '",
         options.mode, "'");
  }
  made_with(options);
}

Shape RandomFlip::build(const Shape& input) {
  internal::require_image(input, "RandomFlip");
  return input;
}

Tensor RandomFlip::call(const Tensor& input, CallContext context) const {
  if (!context.training) return as_floats(input);
  return internal::in_float32(as_floats(input), [&](const Tensor& x) {
    const Tensor across = horizontal_ ? flip_some(x, 2, next_random_key()) : x;
    return vertical_ ? flip_some(across, 1, next_random_key()) : across;
  });
}

RandomColour::RandomColour(std::string_view who, double factor, RandomColourOptions options)
    : Layer(options.name, options.input_shape),
      factor_(checked_factor(factor, who)),
      range_(checked_range(options.value_range, who)) {
  made_with(factor, options);
}

Shape RandomColour::build(const Shape& input) {
  internal::require_image(input, type_name());
  return input;
}

Tensor RandomColour::call(const Tensor& input, CallContext context) const {
  if (!context.training || factor_ == 0.0) return as_floats(input);
  return internal::in_float32(as_floats(input), [&](const Tensor& x) {
    return clip(changed(x, next_random_key()), range_[0], range_[1]);
  });
}

Tensor RandomBrightness::changed(const Tensor& x, const RandomKey& key) const {
  const double most = factor_ * (range_[1] - range_[0]);
  return x + per_picture(x, key, -most, most);
}

Tensor RandomContrast::changed(const Tensor& x, const RandomKey& key) const {
  const Tensor mean = reduce_mean(x, {.axes = {1, 2}, .keep_dims = true});
  return (x - mean) * per_picture(x, key, 1.0 - factor_, 1.0 + factor_) + mean;
}

CenterCrop::CenterCrop(Size2D size, LayerOptions options)
    : LayerOf(options.name, options.input_shape), size_(size) {
  internal::require_positive(size, "CenterCrop", "size");
  made_with(size);
}

Shape CenterCrop::build(const Shape& input) {
  internal::require_image(input, "CenterCrop");
  if (input[0] < size_.height || input[1] < size_.width) {
    fail(ErrorCode::kInvalidArgument, "CenterCrop: expected images of at least ", size_.height,
         " x ", size_.width, " pixels, got ", input[0], " x ", input[1], "; use ZeroPadding2D");
  }
  return {size_.height, size_.width, input[2]};
}

Tensor CenterCrop::call(const Tensor& input, CallContext) const {
  const std::int64_t top = (input.shape()[1] - size_.height) / 2;
  const std::int64_t left = (input.shape()[2] - size_.width) / 2;
  return slice(input, {0, top, left, 0}, {-1, size_.height, size_.width, -1});
}

}  // namespace tutti
