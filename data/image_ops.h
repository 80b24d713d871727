// Functions of one picture, by tf.image's names and rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/tensor/tensor.h"

/// A picture is [height, width, channels], uint8 (0 .. 255) or float32 (1 is white, nothing is
/// clipped); the result has its type. Pictures in batches throw kInvalidArgument, as do arguments
/// that do not fit, naming function, expected and got. Threads: any.
namespace tutti::image {

/// What stands around a picture: zeros, or the picture mirrored at its outermost pixels (numpy's
/// "reflect": c b | a b c | b a).
enum class PaddingMode { kZeros, kReflect };

/// The part of `height` x `width` pixels whose first pixel is (top, left); it must lie inside.
Tensor crop_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                            std::int64_t height, std::int64_t width);
/// The same, but the part may lie outside: there stands what `mode` says. kReflect: less than a
/// picture's size outside.
Tensor crop_or_pad_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                                   std::int64_t height, std::int64_t width, PaddingMode mode);
/// The middle (Keras's CenterCrop); an odd pixel too many is cut off behind.
Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width);
/// The middle where the picture is too large, zeros around it where it is too small.
Tensor resize_with_crop_or_pad(const Tensor& image, std::int64_t height, std::int64_t width);
Tensor flip_left_right(const Tensor& image);
Tensor flip_up_down(const Tensor& image);
/// `value` in the rectangle, as far as it lies in the picture.
Tensor erase(const Tensor& image, std::int64_t top, std::int64_t left, std::int64_t height,
             std::int64_t width, double value = 0.0);

/// uint8 to float32: / 255. float32 to uint8: * 255.5, saturated, truncated. To its own type: as it
/// is. Any shape.
Tensor convert_image_dtype(const Tensor& image, DType dtype);

// uint8 pictures are converted to float32, changed and converted back.

/// x + delta.
Tensor adjust_brightness(const Tensor& image, double delta);
/// (x - mean of the channel) * factor + mean of the channel.
Tensor adjust_contrast(const Tensor& image, double factor);
/// Saturation (of HSV) * factor, at most 1; 3 channels; factor >= 0.
Tensor adjust_saturation(const Tensor& image, double factor);
/// Hue (of HSV, whose circle is 1 long) + delta; 3 channels; delta in [-1, 1].
Tensor adjust_hue(const Tensor& image, double delta);
/// (x - mean) / max(stddev, 1 / sqrt(number of values)) over the picture, float32. uint8 values
/// count 0 .. 255.
Tensor per_image_standardization(const Tensor& image);

}  // namespace tutti::image
