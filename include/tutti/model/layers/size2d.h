// Heights and widths of windows and strides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/core/json.h"
#include "tutti/tensor/op.h"

namespace tutti {

/// Height and width: `3` stands for 3 x 3, and `{1, 3}` for height 1 and width 3.
struct Size2D {
  Size2D(int side) : height(side), width(side) {}
  Size2D(std::int64_t side) : height(side), width(side) {}
  Size2D(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}
  /// Returns the JSON array [height, width].
  Json to_json() const { return Json::Array{height, width}; }
  static Size2D from_json(const Json& json);

  std::int64_t height;
  std::int64_t width;
};

namespace internal {

/// Parses "valid" or "same". Throws kInvalidArgument, naming `who`, for any other text.
Padding parse_padding(std::string_view text, std::string_view who);
/// Throw kInvalidArgument unless all numbers are positive.
void require_positive(std::int64_t size, std::string_view who, std::string_view what);
void require_positive(Size2D size, std::string_view who, std::string_view what);
/// Returns `rate`. Throws kInvalidArgument unless it is in [0, 1).
double require_rate(double rate, std::string_view who, std::string_view what = "a rate");
/// Returns the number of positions of a window along one dimension. Throws kInvalidArgument if the
/// window is longer than the dimension.
std::int64_t window_places(std::int64_t length, std::int64_t window, std::int64_t stride,
                           Padding padding, std::string_view who);
/// Throws kInvalidArgument unless an example is [height, width, channels].
void require_image(const Shape& example, std::string_view who);
/// Throws kInvalidArgument unless an example is [steps, channels].
void require_sequence(const Shape& example, std::string_view who);
/// Throws kInvalidArgument unless an example is [..., features].
void require_features(const Shape& example);
/// Throws kInvalidArgument unless `input` is [batch, ..., features] with the number of features for
/// which the weights were created.
void require_features(const Tensor& input, std::int64_t features);

}  // namespace internal
}  // namespace tutti
