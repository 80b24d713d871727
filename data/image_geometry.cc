// Pictures cut, padded, mirrored and erased.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/image_pixels.h"
#include "tutti/data/image_ops.h"

// Whole pixels are moved as bytes: the loops do not depend on the type.

namespace tutti {
namespace internal {

ImageExtents image_size(const Tensor& image, std::string_view who) {
  if (image.rank() != 3) {
    fail(ErrorCode::kInvalidArgument, who,
         ": expected one picture of shape [height, width, channels], got shape ", image.shape(),
         image.rank() == 4 ? "; try it before batch()" : "; try reshape()");
  }
  if (image.dtype() != DType::kUInt8 && image.dtype() != DType::kFloat32) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a picture of uint8 or float32, got ",
         image.dtype(), "; try cast()");
  }
  return {image.shape()[0], image.shape()[1], image.shape()[2]};
}

void require_positive(std::int64_t height, std::int64_t width, std::string_view who) {
  if (height < 1 || width < 1) {
    fail(ErrorCode::kInvalidArgument, who, ": expected at least 1 x 1 pixels, got ", height, " x ",
         width);
  }
}

}  // namespace internal

namespace image {
namespace {

using internal::image_size;
using internal::ImageExtents;
using internal::require_positive;

constexpr std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count); }

std::int64_t pixel_bytes(const Tensor& image) {
  return image.shape()[2] * static_cast<std::int64_t>(size_of(image.dtype()));
}

MutableTensor make_image(const Tensor& like, std::int64_t height, std::int64_t width) {
  return MutableTensor({height, width, like.shape()[2]}, like.dtype(), like.device());
}

/// Place `i`, less than `size` outside of 0 .. size - 1, mirrored into it.
std::int64_t mirrored(std::int64_t i, std::int64_t size) {
  if (i < 0) i = -i;
  return i < size ? i : 2 * (size - 1) - i;
}

/// Pixels [first, last) of a row of the result, all of which lie outside of the picture's row.
struct RowCopy {
  const std::byte* from;
  std::byte* to;
  std::int64_t left, width, pixel;

  void outside(std::int64_t first, std::int64_t last, PaddingMode mode) const {
    if (first >= last) return;
    if (mode == PaddingMode::kZeros) {
      std::memset(to + first * pixel, 0, bytes((last - first) * pixel));
      return;
    }
    for (std::int64_t x = first; x < last; ++x) {
      std::memcpy(to + x * pixel, from + mirrored(left + x, width) * pixel, bytes(pixel));
    }
  }
  void inside(std::int64_t first, std::int64_t last) const {
    if (first < last) {
      std::memcpy(to + first * pixel, from + (left + first) * pixel, bytes((last - first) * pixel));
    }
  }
};

/// The one loop behind all crops and paddings.
Tensor window(const Tensor& image, const ImageExtents& size, std::int64_t top, std::int64_t left,
              std::int64_t height, std::int64_t width, PaddingMode mode) {
  MutableTensor result = make_image(image, height, width);
  const std::int64_t pixel = pixel_bytes(image);
  const std::int64_t first = std::clamp<std::int64_t>(-left, 0, width);
  const std::int64_t last = std::clamp<std::int64_t>(size.width - left, first, width);
  for (std::int64_t y = 0; y < height; ++y) {
    std::byte* to = result.data() + y * width * pixel;
    std::int64_t from_y = top + y;
    if (from_y < 0 || from_y >= size.height) {
      if (mode == PaddingMode::kZeros) {
        std::memset(to, 0, bytes(width * pixel));
        continue;
      }
      from_y = mirrored(from_y, size.height);
    }
    const RowCopy row{image.bytes().data() + from_y * size.width * pixel, to, left, size.width,
                      pixel};
    row.outside(0, first, mode);
    row.inside(first, last);
    row.outside(last, width, mode);
  }
  return result.freeze();
}

/// Pixels in reverse; with the number of bytes known, a pixel is moved by one or two instructions.
template <std::int64_t kPixel>
void reverse_row(const std::byte* from, std::byte* to, std::int64_t width, std::int64_t pixel) {
  const std::int64_t step = kPixel > 0 ? kPixel : pixel;
  for (std::int64_t x = 0; x < width; ++x) {
    std::memcpy(to + (width - 1 - x) * step, from + x * step, bytes(step));
  }
}

auto row_reverser(std::int64_t pixel) {
  switch (pixel) {
    case 1:
      return reverse_row<1>;
    case 3:
      return reverse_row<3>;
    case 4:
      return reverse_row<4>;
    case 12:
      return reverse_row<12>;
    default:
      return reverse_row<0>;
  }
}

std::uint8_t as_byte(double value, std::string_view who) {
  if (!(value >= 0.0 && value <= 255.0)) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a value in 0 .. 255 for uint8, got ", value);
  }
  return static_cast<std::uint8_t>(std::lround(value));
}

}  // namespace

Tensor crop_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                            std::int64_t height, std::int64_t width) {
  constexpr std::string_view kWho = "image::crop_to_bounding_box";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  if (top < 0 || left < 0 || height > size.height || top > size.height - height ||
      width > size.width || left > size.width - width) {
    fail(ErrorCode::kInvalidArgument, kWho, ": expected a part of the ", size.height, " x ",
         size.width, " picture, got ", height, " x ", width, " pixels from (", top, ", ", left,
         ") on");
  }
  return window(image, size, top, left, height, width, PaddingMode::kZeros);
}

Tensor crop_or_pad_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                                   std::int64_t height, std::int64_t width, PaddingMode mode) {
  constexpr std::string_view kWho = "image::crop_or_pad_to_bounding_box";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // so that no sum below overflows
  if (std::max({std::abs(top), std::abs(left), height, width}) > kMost) {
    fail(ErrorCode::kInvalidArgument, kWho, ": expected numbers of pixels, got ", height, " x ",
         width, " from (", top, ", ", left, ") on");
  }
  const std::int64_t most_rows = std::max(-top, top + height - size.height);
  const std::int64_t most_columns = std::max(-left, left + width - size.width);
  if (mode == PaddingMode::kReflect && (most_rows >= size.height || most_columns >= size.width)) {
    fail(ErrorCode::kInvalidArgument, kWho,
         ": expected fewer reflected pixels than the picture has (", size.height, " x ", size.width,
         "), got ", most_rows, " rows and ", most_columns, " columns; try PaddingMode::kZeros");
  }
  return window(image, size, top, left, height, width, mode);
}

Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width) {
  constexpr std::string_view kWho = "image::center_crop";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  if (height > size.height || width > size.width) {
    fail(ErrorCode::kInvalidArgument, kWho, ": expected at most ", size.height, " x ", size.width,
         " pixels, as the picture has, got ", height, " x ", width,
         "; try resize_with_crop_or_pad()");
  }
  return window(image, size, (size.height - height) / 2, (size.width - width) / 2, height, width,
                PaddingMode::kZeros);
}

Tensor resize_with_crop_or_pad(const Tensor& image, std::int64_t height, std::int64_t width) {
  constexpr std::string_view kWho = "image::resize_with_crop_or_pad";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  // Integer division cuts towards zero: an odd pixel comes behind, cut off or added.
  return window(image, size, (size.height - height) / 2, (size.width - width) / 2, height, width,
                PaddingMode::kZeros);
}

Tensor flip_left_right(const Tensor& image) {
  const ImageExtents size = image_size(image, "image::flip_left_right");
  MutableTensor result = make_image(image, size.height, size.width);
  const std::int64_t pixel = pixel_bytes(image);
  const auto reverse = row_reverser(pixel);
  for (std::int64_t y = 0; y < size.height; ++y) {
    const std::int64_t row = y * size.width * pixel;
    reverse(image.bytes().data() + row, result.data() + row, size.width, pixel);
  }
  return result.freeze();
}

Tensor flip_up_down(const Tensor& image) {
  const ImageExtents size = image_size(image, "image::flip_up_down");
  MutableTensor result = make_image(image, size.height, size.width);
  const std::int64_t row = size.width * pixel_bytes(image);
  for (std::int64_t y = 0; y < size.height && row > 0; ++y) {
    std::memcpy(result.data() + (size.height - 1 - y) * row, image.bytes().data() + y * row,
                bytes(row));
  }
  return result.freeze();
}

Tensor erase(const Tensor& image, std::int64_t top, std::int64_t left, std::int64_t height,
             std::int64_t width, double value) {
  constexpr std::string_view kWho = "image::erase";
  const ImageExtents size = image_size(image, kWho);
  const std::int64_t first_y = std::clamp<std::int64_t>(top, 0, size.height);
  const std::int64_t last_y = std::clamp<std::int64_t>(top + height, first_y, size.height);
  const std::int64_t first_x = std::clamp<std::int64_t>(left, 0, size.width);
  const std::int64_t last_x = std::clamp<std::int64_t>(left + width, first_x, size.width);
  MutableTensor result;
  result.assign(image);
  result.make_unique();
  internal::visit_pixels(image.dtype(), [&]<class T>() {
    const T fill = std::is_same_v<T, float> ? static_cast<T>(value) : as_byte(value, kWho);
    T* pixels = result.span<T>().data();
    for (std::int64_t y = first_y; y < last_y; ++y) {
      T* row = pixels + y * size.width * size.channels;
      std::fill(row + first_x * size.channels, row + last_x * size.channels, fill);
    }
  });
  return result.freeze();
}

}  // namespace image
}  // namespace tutti
