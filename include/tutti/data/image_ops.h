// Operations on one image, with tf.image's names and rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "tutti/core/random.h"
#include "tutti/tensor/tensor.h"

namespace tutti::image {

/// An image is [height, width, channels], uint8 (0 .. 255) or float32 (1 is white, values are not
/// clipped); the result has the type of the image. These functions throw kInvalidArgument, naming
/// the function, for batches of images and for invalid arguments. Thread-safe.

/// Pixels around an image: zeros, or the image reflected at its outermost pixels (numpy's
/// "reflect": c b | a b c | b a).
enum class PaddingMode { kZeros, kReflect };

/// Returns the rectangle of `height` x `width` pixels whose upper left pixel is (top, left). It
/// must lie within the image.
Tensor crop_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                            std::int64_t height, std::int64_t width);
/// Same as crop_to_bounding_box(), but pixels outside the image are filled according to `mode`.
/// With kReflect, each margin outside the image must be smaller than the image.
Tensor crop_or_pad_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                                   std::int64_t height, std::int64_t width, PaddingMode mode);
/// Returns the centre of the image (Keras's CenterCrop). If an odd number of pixels is cut off, the
/// extra one is cut off at the end.
Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width);
/// Crops at the centre if the image is too large; adds zeros around it if it is too small.
Tensor resize_with_crop_or_pad(const Tensor& image, std::int64_t height, std::int64_t width);
Tensor flip_left_right(const Tensor& image);
Tensor flip_up_down(const Tensor& image);
/// Fills the part of the rectangle that is within the image with `value`.
Tensor erase(const Tensor& image, std::int64_t top, std::int64_t left, std::int64_t height,
             std::int64_t width, double value = 0.0);

/// Converts uint8 to float32 (/ 255), or float32 to uint8 (* 255.5, saturated, truncated). Returns
/// the image unchanged if it already has this type. Accepts any shape.
Tensor convert_image_dtype(const Tensor& image, DType dtype);

// uint8 images are converted to float32, changed and converted back.

/// Returns x + delta.
Tensor adjust_brightness(const Tensor& image, double delta);
/// Returns (x - mean of the channel) * factor + mean of the channel.
Tensor adjust_contrast(const Tensor& image, double factor);
/// Multiplies the saturation (as in HSV) by `factor` >= 0 and clips it to 1. Requires: 3 channels.
Tensor adjust_saturation(const Tensor& image, double factor);
/// Adds a delta in [-1, 1] to the hue (as in HSV, where the full circle is 1). Requires: 3
/// channels.
Tensor adjust_hue(const Tensor& image, double delta);
/// Returns (x - mean) / max(stddev, 1 / sqrt(number of values)) over the image, float32. uint8
/// values are used as 0 .. 255.
Tensor per_image_standardization(const Tensor& image);

// Random changes to an image: the steps of augment_images().

/// Function of an image and random numbers only: equal streams cause equal changes, even to a
/// second image such as a mask. Accepts the same images, and throws the same errors, as the
/// functions above. The functions below return such steps and throw kInvalidArgument for invalid
/// settings.
using ImageStep = std::function<Tensor(const Tensor& image, const RandomStream& random)>;

struct RandomCropOptions {
  /// Number of pixels added on each side of the image before cropping.
  std::int64_t padding = 0;
  PaddingMode padding_mode = PaddingMode::kZeros;
};
/// Crops `height` x `width` pixels; every position is equally likely.
ImageStep random_crop(std::int64_t height, std::int64_t width, RandomCropOptions options = {});
/// Overload for `size` x `size` pixels.
ImageStep random_crop(std::int64_t size, RandomCropOptions options = {});

/// Flips the image with probability 0.5.
ImageStep random_flip_left_right();
ImageStep random_flip_up_down();

/// Calls adjust_brightness() with a random delta in [-max_delta, max_delta), where white is 1.
ImageStep random_brightness(double max_delta);
/// Return a step that calls adjust_contrast() or adjust_saturation() with a random factor in
/// [lower, upper). Requires: lower >= 0.
ImageStep random_contrast(double lower, double upper);
ImageStep random_saturation(double lower, double upper);
/// Calls adjust_hue() with a random delta in [-max_delta, max_delta), max_delta <= 0.5.
ImageStep random_hue(double max_delta);

struct CutoutOptions {
  /// Value of the erased pixels.
  double value = 0.0;
};
/// Erases a square of `size` x `size` pixels, centred at a random pixel and clipped to the image
/// (DeVries, Taylor: "Improved regularization of convolutional neural networks with cutout", 2017).
ImageStep cutout(std::int64_t size, CutoutOptions options = {});

// Deterministic steps, which call the functions of the same names above.
ImageStep center_crop(std::int64_t height, std::int64_t width);
ImageStep resize_with_crop_or_pad(std::int64_t height, std::int64_t width);
ImageStep convert_image_dtype(DType dtype);
ImageStep per_image_standardization();

}  // namespace tutti::image
