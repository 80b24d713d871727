// Layers that change the shape or the size of examples.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/reshaping.h"

#include <algorithm>
#include <vector>

#include "core/names.h"
#include "tutti/tensor/ops/convolution_ops.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Layers that change the shape of examples.

namespace {

/// Returns `target` with -1 replaced by the inferred size. Throws kInvalidArgument if the number of
/// elements does not match.
Shape resolved_target(const Shape& input, std::vector<std::int64_t> target) {
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  for (std::int64_t& dim : target) {
    if (dim == -1 && !open) {
      open = &dim;
    } else if (dim < 0) {
      fail(ErrorCode::kInvalidArgument, "Reshape: expected sizes >= 0 and at most one -1, got [",
           join(target), "]");
    } else {
      known *= dim;
    }
  }
  const std::int64_t elements = input.num_elements();
  if (open) *open = known > 0 ? elements / known : 0;
  const Shape shape{std::span<const std::int64_t>(target)};
  internal::require(shape.num_elements() == elements, "Reshape: examples of shape ", input,
                    " have ", elements, " elements, which cannot be reshaped to ", shape);
  return shape;
}

}  // namespace

Flatten::Flatten(LayerOptions options) : LayerOf(options.name, options.input_shape) { made_with(); }

Shape Flatten::build(const Shape& input) { return {input.num_elements()}; }

Tensor Flatten::call(const Tensor& input, CallContext) const {
  return input.rank() == 1 ? expand_dims(input, -1) : flatten_rows(input);
}

Reshape::Reshape(std::vector<std::int64_t> target, LayerOptions options)
    : LayerOf(options.name, options.input_shape), target_(std::move(target)) {
  made_with(target_);
}

Shape Reshape::build(const Shape& input) { return resolved_target(input, target_); }

Tensor Reshape::call(const Tensor& input, CallContext) const {
  return reshape(input, output_shape().with_front(input.shape()[0]));
}

Permute::Permute(std::vector<int> permutation, LayerOptions options)
    : LayerOf(options.name, options.input_shape), permutation_(std::move(permutation)) {
  for (int axis = 1; axis <= static_cast<int>(permutation_.size()); ++axis) {
    if (std::ranges::count(permutation_, axis) == 1) continue;
    fail(ErrorCode::kInvalidArgument, "Permute: expected a permutation of the axes 1 to ",
         permutation_.size(), ", got [", join(permutation_), "]");
  }
  made_with(permutation_);
}

Shape Permute::build(const Shape& input) {
  internal::require(input.rank() == static_cast<int>(permutation_.size()),
                    "Permute: expected examples of rank ", permutation_.size(), ", got ", input);
  Shape output = input;
  for (int i = 0; i < input.rank(); ++i)
    output = output.with_dim(i, input[permutation_[static_cast<std::size_t>(i)] - 1]);
  return output;
}

Tensor Permute::call(const Tensor& input, CallContext) const {
  std::vector<int> order = {0};
  order.insert(order.end(), permutation_.begin(), permutation_.end());
  return transpose(input, order);
}

RepeatVector::RepeatVector(std::int64_t times, LayerOptions options)
    : LayerOf(options.name, options.input_shape), times_(times) {
  if (times <= 0)
    fail(ErrorCode::kInvalidArgument, "RepeatVector: expected a positive number of copies, got ",
         times);
  made_with(times);
}

Shape RepeatVector::build(const Shape& input) {
  internal::require(input.rank() == 1, "RepeatVector: expected examples of shape [features], got ",
                    input);
  return {times_, input[0]};
}

Tensor RepeatVector::call(const Tensor& input, CallContext) const {
  return broadcast_to(expand_dims(input, 1), Shape{input.shape()[0], times_, input.shape()[1]});
}

// Padding, cropping and upsampling of images and sequences.

Margins2D Margins2D::from_json(const Json& json) {
  const auto sizes = value_of<std::array<std::int64_t, 4>>(json);
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

Margins1D Margins1D::from_json(const Json& json) {
  const auto sizes = value_of<std::array<std::int64_t, 2>>(json);
  return {sizes[0], sizes[1]};
}

namespace {

void require_margins(std::initializer_list<std::int64_t> margins, std::string_view who) {
  if (std::ranges::all_of(margins, [](std::int64_t margin) { return margin >= 0; })) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected margins >= 0, got ",
       join(std::vector<std::int64_t>(margins)));
}

}  // namespace

ZeroPadding2D::ZeroPadding2D(Margins2D padding, LayerOptions options)
    : LayerOf(options.name, options.input_shape), padding_(padding) {
  require_margins({padding.top, padding.bottom, padding.left, padding.right}, "ZeroPadding2D");
  made_with(padding);
}

Shape ZeroPadding2D::build(const Shape& input) {
  internal::require_image(input, "ZeroPadding2D");
  return {input[0] + padding_.top + padding_.bottom, input[1] + padding_.left + padding_.right,
          input[2]};
}

Tensor ZeroPadding2D::call(const Tensor& input, CallContext) const {
  return pad(input, {0, padding_.top, padding_.left, 0}, {0, padding_.bottom, padding_.right, 0});
}

Cropping2D::Cropping2D(Margins2D cropping, LayerOptions options)
    : LayerOf(options.name, options.input_shape), cropping_(cropping) {
  require_margins({cropping.top, cropping.bottom, cropping.left, cropping.right}, "Cropping2D");
  made_with(cropping);
}

Shape Cropping2D::build(const Shape& input) {
  internal::require_image(input, "Cropping2D");
  const std::int64_t height = input[0] - cropping_.top - cropping_.bottom;
  const std::int64_t width = input[1] - cropping_.left - cropping_.right;
  internal::require(height > 0 && width > 0, "Cropping2D: nothing is left of examples of shape ",
                    input, " after cropping ", cropping_.top, " + ", cropping_.bottom, " rows and ",
                    cropping_.left, " + ", cropping_.right, " columns");
  return {height, width, input[2]};
}

Tensor Cropping2D::call(const Tensor& input, CallContext) const {
  return slice(input, {0, cropping_.top, cropping_.left, 0},
               {-1, input.shape()[1] - cropping_.top - cropping_.bottom,
                input.shape()[2] - cropping_.left - cropping_.right, -1});
}

ZeroPadding1D::ZeroPadding1D(Margins1D padding, LayerOptions options)
    : LayerOf(options.name, options.input_shape), padding_(padding) {
  require_margins({padding.left, padding.right}, "ZeroPadding1D");
  made_with(padding);
}

Shape ZeroPadding1D::build(const Shape& input) {
  internal::require_sequence(input, "ZeroPadding1D");
  return {input[0] + padding_.left + padding_.right, input[1]};
}

Tensor ZeroPadding1D::call(const Tensor& input, CallContext) const {
  return pad(input, {0, padding_.left, 0}, {0, padding_.right, 0});
}

UpSampling2D::UpSampling2D(Size2D size, UpSampling2DOptions options)
    : LayerOf(options.name, options.input_shape),
      size_(size),
      bilinear_(options.interpolation == "bilinear") {
  internal::require_positive(size, "UpSampling2D", "size");
  if (!bilinear_ && options.interpolation != "nearest") {
    fail(ErrorCode::kInvalidArgument,
         "UpSampling2D: expected interpolation 'nearest' or 'bilinear', got '",
         options.interpolation, "'");
  }
  made_with(size, options);
}

Shape UpSampling2D::build(const Shape& input) {
  internal::require_image(input, "UpSampling2D");
  return {input[0] * size_.height, input[1] * size_.width, input[2]};
}

Tensor UpSampling2D::call(const Tensor& input, CallContext) const {
  UpsampleOptions options{size_.height, size_.width, Interpolation::kNearest};
  if (bilinear_) options.interpolation = Interpolation::kBilinear;
  return upsample2d(input, options);
}

}  // namespace tutti
