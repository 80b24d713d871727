// Checks and arithmetic for kernel, window and padding sizes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/size2d.h"

#include <array>

#include "core/names.h"
#include "tutti/core/json_values.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

Size2D Size2D::from_json(const Json& json) {
  const auto sides = value_of<std::array<std::int64_t, 2>>(json);
  return {sides[0], sides[1]};
}

namespace internal {

Padding parse_padding(std::string_view text, std::string_view who) {
  if (text == "valid") return Padding::kValid;
  if (text == "same") return Padding::kSame;
  fail(ErrorCode::kInvalidArgument, who, ": expected padding 'valid' or 'same', got '", text, "'");
}

void require_positive(std::int64_t size, std::string_view who, std::string_view what) {
  if (size > 0) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected a positive ", what, ", got ", size);
}

void require_positive(Size2D size, std::string_view who, std::string_view what) {
  if (size.height > 0 && size.width > 0) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected a positive ", what, ", got ", size.height,
       " x ", size.width);
}

double require_rate(double rate, std::string_view who, std::string_view what) {
  if (rate >= 0.0 && rate < 1.0) return rate;
  fail(ErrorCode::kInvalidArgument, who, ": expected ", what, " in [0, 1), got ", rate);
}

std::int64_t window_places(std::int64_t length, std::int64_t window, std::int64_t stride,
                           Padding padding, std::string_view who) {
  if (padding == Padding::kSame) return (length + stride - 1) / stride;
  internal::require(window <= length, who, ": a window of ", window,
                    " does not fit into a length of ", length, "; use .padding = \"same\"");
  return (length - window) / stride + 1;
}

void require_image(const Shape& example, std::string_view who) {
  if (example.rank() == 3) return;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected examples of shape [height, width, channels], got ", example,
       "; use Reshape({28, 28, 1})");
}

void require_sequence(const Shape& example, std::string_view who) {
  if (example.rank() == 2) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected examples of shape [steps, channels], got ",
       example, "; use Reshape({-1, 1})");
}

void require_features(const Shape& example) {
  if (example.rank() > 0) return;
  fail(ErrorCode::kInvalidArgument,
       "expected examples of shape [..., features], got scalars; use Flatten() or Input{{1}}");
}

void require_features(const Tensor& input, std::int64_t features) {
  internal::require(input.rank() >= 2 && input.shape()[-1] == features,
                    "its weights were created for ", features,
                    " features; expected inputs [batch, ..., ", features, "], got ", input.shape());
}

}  // namespace internal
}  // namespace tutti
