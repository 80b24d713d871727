// What functions of pictures share: limits, kinds of pixels, extents.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/data/image.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// What the decoders of pictures share: limits and kinds of pixels.

/// Throws kResourceExhausted naming `source` beyond options.max_pixels. To be called before memory
/// is taken for pixels or rows, by libraries too.
void require_pixels(std::int64_t height, std::int64_t width, const std::string& source,
                    const DecodeImageOptions& options);

/// `image`, uint8 [height, width, 1 to 4], with the channels of `mode`.
Tensor to_color_mode(const Tensor& image, ColorMode mode);

/// Throws kInvalidArgument naming `who` unless `image` is uint8 [height, width, channels], not
/// empty.
void require_image(const Tensor& image, const char* who);

// The extents of a picture.

struct ImageExtents {
  std::int64_t height = 0, width = 0, channels = 0;
};

/// Throws kInvalidArgument naming `who` unless `image` is uint8 or float32 [height, width,
/// channels].
ImageExtents image_size(const Tensor& image, std::string_view who);

/// Throws kInvalidArgument naming `who` unless both are 1 or more.
void require_positive(std::int64_t height, std::int64_t width, std::string_view who);

/// Calls visitor.template operator()<T>() with uint8_t or float: the pixels of an image that passed
/// image_size().
template <class Visitor>
decltype(auto) visit_pixels(DType dtype, Visitor&& visitor) {
  if (dtype == DType::kUInt8) return visitor.template operator()<std::uint8_t>();
  return visitor.template operator()<float>();
}

}  // namespace tutti::internal
