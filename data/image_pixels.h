// What the decoders of pictures share: limits and kinds of pixels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/data/image.h"

namespace tutti::internal {

/// Throws kResourceExhausted naming `source` beyond options.max_pixels. To be called before memory
/// is taken for pixels or rows, by libraries too.
void require_pixels(std::int64_t height, std::int64_t width, const std::string& source,
                    const DecodeImageOptions& options);

/// `image`, uint8 [height, width, 1 to 4], with the channels of `mode`.
Tensor to_color_mode(const Tensor& image, ColorMode mode);

/// Throws kInvalidArgument naming `who` unless `image` is uint8 [height, width, channels], not
/// empty.
void require_image(const Tensor& image, const char* who);

}  // namespace tutti::internal
