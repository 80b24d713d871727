// Pictures of another size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/tensor/op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

struct ResizeImageOptions {
  Interpolation interpolation = Interpolation::kBilinear;
  /// Takes the largest part in the middle that has the new picture's proportions, instead of
  /// distorting (Keras's crop_to_aspect_ratio).
  bool crop_to_aspect_ratio = false;
};

/// `image` [height, width, channels], uint8 or float32, as float32 [size.height, size.width,
/// channels] in the same range. Pixel centres are at half numbers and the border is repeated, as in
/// tf.image.resize without antialiasing; a bilinear pixel is made of the four nearest, also where
/// the picture gets smaller. On the host; not recorded on tapes. Throws kInvalidArgument for other
/// tensors, empty pictures and sizes below 1. Threads: any.
Tensor resize_image(const Tensor& image, ImageSize size, ResizeImageOptions options = {});

}  // namespace tutti
