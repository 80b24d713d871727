// Heights and widths of windows and strides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/tensor/op.h"

namespace tutti {

/// A height and a width: `3` is square, `{1, 3}` is not.
struct Size2D {
  Size2D(int side) : height(side), width(side) {}
  Size2D(std::int64_t side) : height(side), width(side) {}
  Size2D(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}
  std::int64_t height;
  std::int64_t width;
};

namespace internal {

/// "valid" or "same"; throws kInvalidArgument naming `who` for another word.
Padding parse_padding(std::string_view text, std::string_view who);
/// Throws kInvalidArgument unless both are positive.
void require_positive(Size2D size, std::string_view who, std::string_view what);
/// Number of places of a window along one dimension. Throws kInvalidArgument when the window is
/// larger than what it slides over.
std::int64_t window_places(std::int64_t length, std::int64_t window, std::int64_t stride,
                           Padding padding, std::string_view who);
/// Throws kInvalidArgument unless an example is [height, width, channels].
void require_image(const Shape& example, std::string_view who);
/// Throws kInvalidArgument unless an example is [steps, channels].
void require_sequence(const Shape& example, std::string_view who);

}  // namespace internal
}  // namespace tutti
