// Random changes of one picture: the steps of augment_images().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "tutti/core/random.h"
#include "tutti/data/image_ops.h"

namespace tutti::image {

/// A function of a picture and of random numbers, and of nothing else: the same stream, the same
/// change (also of a second picture, such as a mask). Pictures and errors as in image_ops.h. The
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

// The functions of image_ops.h that fit between random ones.
ImageStep center_crop(std::int64_t height, std::int64_t width);
ImageStep resize_with_crop_or_pad(std::int64_t height, std::int64_t width);
ImageStep convert_image_dtype(DType dtype);
ImageStep per_image_standardization();

}  // namespace tutti::image
