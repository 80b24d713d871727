// Functions of one picture, by tf.image's names and rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "tutti/core/random.h"
#include "tutti/tensor/tensor.h"

namespace tutti::image {

/// A picture is [height, width, channels], uint8 (0 .. 255) or float32 (1 is white, nothing is
/// clipped); the result has its type. Pictures in batches throw kInvalidArgument, as do arguments
/// that do not fit, naming function, expected and got. Threads: any.

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

// Random changes of one picture: the steps of augment_images().

/// A function of a picture and of random numbers, and of nothing else: the same stream, the same
/// change (also of a second picture, such as a mask). Pictures and errors as above. The
/// functions below make such steps and throw kInvalidArgument for settings that make no sense.
using ImageStep = std::function<Tensor(const Tensor& image, const RandomStream& random)>;

struct RandomCropOptions {
  /// Pixels put around the picture first, on each side.
  std::int64_t padding = 0;
  PaddingMode padding_mode = PaddingMode::kZeros;
};
/// A part of `height` x `width` pixels; every place is equally likely.
ImageStep random_crop(std::int64_t height, std::int64_t width, RandomCropOptions options = {});
/// The same with `size` x `size` pixels.
ImageStep random_crop(std::int64_t size, RandomCropOptions options = {});

/// Mirrored in half of all cases.
ImageStep random_flip_left_right();
ImageStep random_flip_up_down();

/// adjust_brightness() by a delta in [-max_delta, max_delta), of which white is 1.
ImageStep random_brightness(double max_delta);
/// adjust_contrast() by a factor in [lower, upper), 0 <= lower < upper; in the same way the others.
ImageStep random_contrast(double lower, double upper);
ImageStep random_saturation(double lower, double upper);
/// adjust_hue() by a delta in [-max_delta, max_delta), max_delta <= 0.5.
ImageStep random_hue(double max_delta);

struct CutoutOptions {
  /// What the square is filled with.
  double value = 0.0;
};
/// A square of `size` x `size` pixels is erased. Its centre is any pixel of the picture; what lies
/// outside is cut off (DeVries, Taylor: "Improved regularization of convolutional neural networks
/// with cutout", 2017).
ImageStep cutout(std::int64_t size, CutoutOptions options = {});

// The functions above that fit between random ones.
ImageStep center_crop(std::int64_t height, std::int64_t width);
ImageStep resize_with_crop_or_pad(std::int64_t height, std::int64_t width);
ImageStep convert_image_dtype(DType dtype);
ImageStep per_image_standardization();

}  // namespace tutti::image
