// The extents of a picture.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

struct ImageExtents {
  std::int64_t height = 0, width = 0, channels = 0;
};

/// Throws kInvalidArgument naming `who` unless `image` is uint8 or float32 [height, width,
/// channels].
ImageExtents image_size(const Tensor& image, std::string_view who);

/// Calls visitor.template operator()<T>() with uint8_t or float: the pixels of an image that passed
/// image_size().
template <class Visitor>
decltype(auto) visit_pixels(DType dtype, Visitor&& visitor) {
  if (dtype == DType::kUInt8) return visitor.template operator()<std::uint8_t>();
  return visitor.template operator()<float>();
}

}  // namespace tutti::internal
