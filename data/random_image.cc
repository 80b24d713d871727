// Steps that change pictures at random.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/image_ops.h"

#include <cmath>

#include "data/image_pixels.h"

// A step takes few numbers: 64-bit number 0, 1, ... of its stream, in the order in which they are
// asked for.

namespace tutti::image {
namespace {

using internal::image_size;
using internal::ImageExtents;
using internal::require_positive;

std::int64_t below(const RandomStream& random, std::uint64_t index, std::int64_t bound) {
  return static_cast<std::int64_t>(random.below(index, static_cast<std::uint64_t>(bound)));
}

double between(const RandomStream& random, double lower, double upper) {
  return lower + (upper - lower) * random.uniform64(0);
}

bool heads(const RandomStream& random) { return random.uniform64(0) < 0.5; }

void require_range(double lower, double upper, std::string_view who) {
  if (!(lower >= 0.0 && lower < upper && std::isfinite(upper))) {
    fail(ErrorCode::kInvalidArgument, who, ": expected 0 <= lower < upper, got lower ", lower,
         " and upper ", upper);
  }
}

void require_max_delta(double max_delta, double most, std::string_view who) {
  if (!(max_delta >= 0.0 && max_delta <= most)) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a max_delta in [0, ", most, "], got ",
         max_delta);
  }
}

}  // namespace

ImageStep random_crop(std::int64_t height, std::int64_t width, RandomCropOptions options) {
  require_positive(height, width, "image::random_crop");
  if (options.padding < 0) {
    fail(ErrorCode::kInvalidArgument, "image::random_crop: expected a padding of at least 0, got ",
         options.padding);
  }
  return [=](const Tensor& picture, const RandomStream& random) {
    const ImageExtents size = image_size(picture, "image::random_crop");
    const std::int64_t rows = size.height + 2 * options.padding - height;
    const std::int64_t columns = size.width + 2 * options.padding - width;
    if (rows < 0 || columns < 0) {
      fail(ErrorCode::kInvalidArgument, "image::random_crop: expected a picture of at least ",
           height, " x ", width, " pixels, got ", size.height, " x ", size.width,
           " with a padding of ", options.padding, "; try more padding or a smaller crop");
    }
    const std::int64_t top = below(random, 0, rows + 1) - options.padding;
    const std::int64_t left = below(random, 1, columns + 1) - options.padding;
    return crop_or_pad_to_bounding_box(picture, top, left, height, width, options.padding_mode);
  };
}

ImageStep random_crop(std::int64_t size, RandomCropOptions options) {
  return random_crop(size, size, options);
}

ImageStep random_flip_left_right() {
  return [](const Tensor& picture, const RandomStream& random) {
    image_size(picture, "image::random_flip_left_right");
    return heads(random) ? flip_left_right(picture) : picture;
  };
}

ImageStep random_flip_up_down() {
  return [](const Tensor& picture, const RandomStream& random) {
    image_size(picture, "image::random_flip_up_down");
    return heads(random) ? flip_up_down(picture) : picture;
  };
}

ImageStep random_brightness(double max_delta) {
  require_max_delta(max_delta, 1e30, "image::random_brightness");
  return [=](const Tensor& picture, const RandomStream& random) {
    return adjust_brightness(picture, between(random, -max_delta, max_delta));
  };
}

ImageStep random_contrast(double lower, double upper) {
  require_range(lower, upper, "image::random_contrast");
  return [=](const Tensor& picture, const RandomStream& random) {
    return adjust_contrast(picture, between(random, lower, upper));
  };
}

ImageStep random_saturation(double lower, double upper) {
  require_range(lower, upper, "image::random_saturation");
  return [=](const Tensor& picture, const RandomStream& random) {
    return adjust_saturation(picture, between(random, lower, upper));
  };
}

ImageStep random_hue(double max_delta) {
  require_max_delta(max_delta, 0.5, "image::random_hue");
  return [=](const Tensor& picture, const RandomStream& random) {
    return adjust_hue(picture, between(random, -max_delta, max_delta));
  };
}

ImageStep cutout(std::int64_t length, CutoutOptions options) {
  require_positive(length, length, "image::cutout");
  return [=](const Tensor& picture, const RandomStream& random) {
    const ImageExtents size = image_size(picture, "image::cutout");
    if (picture.num_elements() == 0) return picture;
    const std::int64_t top = below(random, 0, size.height) - length / 2;
    const std::int64_t left = below(random, 1, size.width) - length / 2;
    return erase(picture, top, left, length, length, options.value);
  };
}

ImageStep center_crop(std::int64_t height, std::int64_t width) {
  require_positive(height, width, "image::center_crop");
  return [=](const Tensor& picture, const RandomStream&) {
    return center_crop(picture, height, width);
  };
}

ImageStep resize_with_crop_or_pad(std::int64_t height, std::int64_t width) {
  require_positive(height, width, "image::resize_with_crop_or_pad");
  return [=](const Tensor& picture, const RandomStream&) {
    return resize_with_crop_or_pad(picture, height, width);
  };
}

ImageStep convert_image_dtype(DType dtype) {
  return [=](const Tensor& picture, const RandomStream&) {
    return convert_image_dtype(picture, dtype);
  };
}

ImageStep per_image_standardization() {
  return
      [](const Tensor& picture, const RandomStream&) { return per_image_standardization(picture); };
}

}  // namespace tutti::image
