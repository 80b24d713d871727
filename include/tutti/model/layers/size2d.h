// Heights and widths of windows and strides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/core/json.h"
#include "tutti/tensor/op.h"

namespace tutti {

/// A height and a width: `3` is square, `{1, 3}` is not.
struct Size2D {
  Size2D(int side) : height(side), width(side) {}
  Size2D(std::int64_t side) : height(side), width(side) {}
  Size2D(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}
  /// As [height, width].
  Json to_json() const { return Json::Array{height, width}; }
  static Size2D from_json(const Json& json);

  std::int64_t height;
  std::int64_t width;
};

namespace internal {

/// "valid" or "same"; throws kInvalidArgument naming `who` for another word.
Padding parse_padding(std::string_view text, std::string_view who);
/// Throw kInvalidArgument unless the number is, or both are, positive.
void require_positive(std::int64_t size, std::string_view who, std::string_view what);
void require_positive(Size2D size, std::string_view who, std::string_view what);
/// `rate`; throws kInvalidArgument unless it is in [0, 1).
double require_rate(double rate, std::string_view who, std::string_view what = "a rate");
/// Number of places of a window along one dimension. Throws kInvalidArgument when the window is
/// larger than what it slides over.
std::int64_t window_places(std::int64_t length, std::int64_t window, std::int64_t stride,
                           Padding padding, std::string_view who);
/// Throws kInvalidArgument unless an example is [height, width, channels].
void require_image(const Shape& example, std::string_view who);
/// Throws kInvalidArgument unless an example is [steps, channels].
void require_sequence(const Shape& example, std::string_view who);
/// Throws kInvalidArgument unless an example is [..., features].
void require_features(const Shape& example);
/// [batch, ..., features] as one matrix [rows, features]. Throws kInvalidArgument for inputs of
/// other features than the weights are made for.
Tensor rows_of_features(const Tensor& input, std::int64_t features);
/// A matrix made of those rows in the shape of `input` again, but for the features.
Tensor like_input(const Tensor& rows, const Tensor& input);

}  // namespace internal
}  // namespace tutti
