// Layers that make images and sequences larger or smaller at the edges, or everywhere.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/resizing.h"

#include <algorithm>
#include <vector>

#include "tutti/tensor/ops/resizing.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

void require_margins(std::initializer_list<std::int64_t> margins, std::string_view who) {
  if (std::ranges::all_of(margins, [](std::int64_t margin) { return margin >= 0; })) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected margins of at least 0, got ",
       join(std::vector<std::int64_t>(margins)));
}

}  // namespace

ZeroPadding2D::ZeroPadding2D(Margins2D padding, ResizingOptions options)
    : LayerOf(options.name, options.input_shape), padding_(padding) {
  require_margins({padding.top, padding.bottom, padding.left, padding.right}, "ZeroPadding2D");
}

Shape ZeroPadding2D::build(const Shape& input) {
  internal::require_image(input, "ZeroPadding2D");
  return {input[0] + padding_.top + padding_.bottom, input[1] + padding_.left + padding_.right,
          input[2]};
}

Tensor ZeroPadding2D::call(const Tensor& input, CallContext) const {
  return pad(input, {0, padding_.top, padding_.left, 0}, {0, padding_.bottom, padding_.right, 0});
}

Cropping2D::Cropping2D(Margins2D cropping, ResizingOptions options)
    : LayerOf(options.name, options.input_shape), cropping_(cropping) {
  require_margins({cropping.top, cropping.bottom, cropping.left, cropping.right}, "Cropping2D");
}

Shape Cropping2D::build(const Shape& input) {
  internal::require_image(input, "Cropping2D");
  const std::int64_t height = input[0] - cropping_.top - cropping_.bottom;
  const std::int64_t width = input[1] - cropping_.left - cropping_.right;
  if (height <= 0 || width <= 0) {
    fail(ErrorCode::kInvalidArgument, "Cropping2D: nothing is left of examples of shape ", input,
         " without ", cropping_.top, " + ", cropping_.bottom, " rows and ", cropping_.left, " + ",
         cropping_.right, " columns");
  }
  return {height, width, input[2]};
}

Tensor Cropping2D::call(const Tensor& input, CallContext) const {
  return slice(input, {0, cropping_.top, cropping_.left, 0},
               {-1, input.shape()[1] - cropping_.top - cropping_.bottom,
                input.shape()[2] - cropping_.left - cropping_.right, -1});
}

ZeroPadding1D::ZeroPadding1D(Margins1D padding, ResizingOptions options)
    : LayerOf(options.name, options.input_shape), padding_(padding) {
  require_margins({padding.left, padding.right}, "ZeroPadding1D");
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
