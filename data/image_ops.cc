// Operations on images: cropping, padding, flipping, erasing, colours, and random steps.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/names.h"
#include "tutti/data/image_ops.h"

// Operations that move whole pixels as bytes, so that the loops do not depend on the pixel type.

namespace tutti::image {
namespace {

struct ImageExtents {
  std::int64_t height = 0, width = 0, channels = 0;
};

/// Returns the extents. Throws kInvalidArgument, naming `who`, unless `image` is uint8 or float32
/// [height, width, channels].
ImageExtents image_size(const Tensor& image, std::string_view who) {
  if (image.rank() != 3) {
    fail(ErrorCode::kInvalidArgument, who,
         ": expected one image of shape [height, width, channels], got shape ", image.shape(),
         image.rank() == 4 ? "; call it before batch()" : "; call reshape()");
  }
  if (image.dtype() != DType::kUInt8 && image.dtype() != DType::kFloat32) {
    fail(ErrorCode::kInvalidArgument, who, ": expected an image of uint8 or float32, got ",
         image.dtype(), "; call cast()");
  }
  return {image.shape()[0], image.shape()[1], image.shape()[2]};
}

/// Throws kInvalidArgument, naming `who`, unless `height` and `width` are >= 1.
void require_positive(std::int64_t height, std::int64_t width, std::string_view who) {
  internal::require(height >= 1 && width >= 1, who, ": expected at least 1 x 1 pixels, got ",
                    height, " x ", width);
}

/// Calls visitor.template operator()<T>() with uint8_t or float, the pixel type of an image that
/// passed image_size().
template <class Visitor>
decltype(auto) visit_pixels(DType dtype, Visitor&& visitor) {
  if (dtype == DType::kUInt8) return visitor.template operator()<std::uint8_t>();
  return visitor.template operator()<float>();
}

constexpr std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count); }

std::int64_t pixel_bytes(const Tensor& image) {
  return image.shape()[2] * static_cast<std::int64_t>(size_of(image.dtype()));
}

MutableTensor make_image(const Tensor& like, std::int64_t height, std::int64_t width) {
  return MutableTensor({height, width, like.shape()[2]}, like.dtype(), like.device());
}

/// Reflects index `i` into the range 0 .. size - 1. Requires: -size < i < 2 * size - 1.
std::int64_t mirrored(std::int64_t i, std::int64_t size) {
  if (i < 0) i = -i;
  return i < size ? i : 2 * (size - 1) - i;
}

/// Copier for the pixels [first, last) of a row, which are either all outside or all inside the
/// image.
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

/// Returns a rectangle of the image; `mode` determines pixels outside the image. Used for cropping
/// and padding.
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

/// Reverses the pixels of a row. A pixel has kPixel bytes, or `pixel` bytes if kPixel is 0. With a
/// constant size, one or two instructions move a pixel.
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
  internal::require(value >= 0.0 && value <= 255.0, who,
                    ": expected a value in 0 .. 255 for uint8, got ", value);
  return static_cast<std::uint8_t>(std::lround(value));
}

}  // namespace

Tensor crop_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                            std::int64_t height, std::int64_t width) {
  constexpr std::string_view kWho = "image::crop_to_bounding_box";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  internal::require(top >= 0 && left >= 0 && height <= size.height && top <= size.height - height &&
                        width <= size.width && left <= size.width - width,
                    kWho, ": expected a box within the ", size.height, " x ", size.width,
                    " image, got ", height, " x ", width, " pixels at (", top, ", ", left, ")");
  return window(image, size, top, left, height, width, PaddingMode::kZeros);
}

Tensor crop_or_pad_to_bounding_box(const Tensor& image, std::int64_t top, std::int64_t left,
                                   std::int64_t height, std::int64_t width, PaddingMode mode) {
  constexpr std::string_view kWho = "image::crop_or_pad_to_bounding_box";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // keeps the sums below from overflowing
  internal::require(std::max({std::abs(top), std::abs(left), height, width}) <= kMost, kWho,
                    ": expected sizes and offsets of at most 2^40 pixels, got ", height, " x ",
                    width, " at (", top, ", ", left, ")");
  const std::int64_t most_rows = std::max(-top, top + height - size.height);
  const std::int64_t most_columns = std::max(-left, left + width - size.width);
  if (mode == PaddingMode::kReflect && (most_rows >= size.height || most_columns >= size.width)) {
    fail(ErrorCode::kInvalidArgument, kWho,
         ": expected fewer reflected pixels than the image has (", size.height, " x ", size.width,
         "), got ", most_rows, " rows and ", most_columns, " columns; use PaddingMode::kZeros");
  }
  return window(image, size, top, left, height, width, mode);
}

Tensor center_crop(const Tensor& image, std::int64_t height, std::int64_t width) {
  constexpr std::string_view kWho = "image::center_crop";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  internal::require(height <= size.height && width <= size.width, kWho, ": expected at most ",
                    size.height, " x ", size.width, " pixels, the size of the image, got ", height,
                    " x ", width, "; call resize_with_crop_or_pad()");
  return window(image, size, (size.height - height) / 2, (size.width - width) / 2, height, width,
                PaddingMode::kZeros);
}

Tensor resize_with_crop_or_pad(const Tensor& image, std::int64_t height, std::int64_t width) {
  constexpr std::string_view kWho = "image::resize_with_crop_or_pad";
  const ImageExtents size = image_size(image, kWho);
  require_positive(height, width, kWho);
  // Integer division truncates towards zero, so the extra pixel of an odd difference is removed or
  // added at the end.
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
  visit_pixels(image.dtype(), [&]<class T>() {
    const T fill = std::is_same_v<T, float> ? static_cast<T>(value) : as_byte(value, kWho);
    T* pixels = result.span<T>().data();
    for (std::int64_t y = first_y; y < last_y; ++y) {
      T* row = pixels + y * size.width * size.channels;
      std::fill(row + first_x * size.channels, row + last_x * size.channels, fill);
    }
  });
  return result.freeze();
}

// Brightness, contrast, colours and standardisation.

namespace {

/// Returns a channel's value as float32, on a scale where white is 1.
inline float load(float value) { return value; }
inline float load(std::uint8_t value) { return static_cast<float>(value) * (1.0f / 255.0f); }

template <class T>
T store(float value);
template <>
inline float store<float>(float value) {
  return value;
}
/// Same as tf's saturate_cast after scaling by 255.5; NaN becomes 0.
template <>
inline std::uint8_t store<std::uint8_t>(float value) {
  const float scaled = value * 255.5f;
  const float low = scaled > 0.0f ? scaled : 0.0f;
  return static_cast<std::uint8_t>(static_cast<int>(low < 255.0f ? low : 255.0f));
}

MutableTensor make_like(const Tensor& image, DType dtype) {
  return MutableTensor(image.shape(), dtype, image.device());
}

/// Returns the column sums: element i is the sum of value i over all rows. The loop has no chain of
/// dependent additions, so it can be vectorized.
template <class T, class Function>
std::vector<double> column_sums(std::span<const T> values, std::int64_t height, Function fn) {
  const std::size_t columns = height == 0 ? 0 : values.size() / static_cast<std::size_t>(height);
  std::vector<double> sums(columns, 0.0);
  for (const T* row = values.data(); height > 0; --height, row += columns) {
    for (std::size_t i = 0; i < columns; ++i) sums[i] += fn(row[i]);
  }
  return sums;
}

double total(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

/// Returns one mean for each value of a row: the mean of the value's channel over the whole image.
template <class T>
std::vector<float> channel_means(std::span<const T> values, const ImageExtents& size) {
  const auto sums = column_sums(values, size.height, [](T value) { return double{load(value)}; });
  const auto channels = static_cast<std::size_t>(size.channels);
  std::vector<double> per_channel(channels, 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i) per_channel[i % channels] += sums[i];
  const double pixels = static_cast<double>(size.height * size.width);
  std::vector<float> means(sums.size());
  for (std::size_t i = 0; i < means.size(); ++i) {
    means[i] = static_cast<float>(per_channel[i % channels] / pixels);
  }
  return means;
}

ImageExtents colour_image_size(const Tensor& image, std::string_view who) {
  const ImageExtents size = image_size(image, who);
  internal::require(size.channels == 3, who, ": expected 3 channels (red, green, blue), got ",
                    size.channels);
  return size;
}

void require_finite(double value, std::string_view who) {
  internal::require(std::isfinite(value), who, ": expected a finite number, got ", value);
}

/// Applies `fn` to the red, green and blue values of every pixel; returns an image of the same
/// type.
template <class Function>
Tensor map_colours(const Tensor& image, Function fn) {
  MutableTensor result = make_like(image, image.dtype());
  visit_pixels(image.dtype(), [&]<class T>() {
    const T* from = image.host_span<T>().data();
    T* to = result.span<T>().data();
    for (std::int64_t i = 0; i < image.num_elements(); i += 3) {
      float pixel[3] = {load(from[i]), load(from[i + 1]), load(from[i + 2])};
      fn(pixel);
      for (std::int64_t channel = 0; channel < 3; ++channel) {
        to[i + channel] = store<T>(pixel[channel]);
      }
    }
  });
  return result.freeze();
}

}  // namespace

Tensor convert_image_dtype(const Tensor& image, DType dtype) {
  constexpr std::string_view kWho = "image::convert_image_dtype";
  for (const DType each : {image.dtype(), dtype}) {
    if (each != DType::kUInt8 && each != DType::kFloat32) {
      fail(ErrorCode::kInvalidArgument, kWho, ": expected uint8 or float32, got ", each,
           "; call cast()");
    }
  }
  if (image.dtype() == dtype) return image;
  MutableTensor result = make_like(image, dtype);
  visit_pixels(image.dtype(), [&]<class From>() {
    visit_pixels(dtype, [&]<class To>() {
      const auto from = image.host_span<From>();
      const auto to = result.span<To>();
      for (std::size_t i = 0; i < from.size(); ++i) to[i] = store<To>(load(from[i]));
    });
  });
  return result.freeze();
}

Tensor adjust_brightness(const Tensor& image, double delta) {
  constexpr std::string_view kWho = "image::adjust_brightness";
  image_size(image, kWho);
  require_finite(delta, kWho);
  MutableTensor result = make_like(image, image.dtype());
  visit_pixels(image.dtype(), [&, add = static_cast<float>(delta)]<class T>() {
    const auto from = image.host_span<T>();
    const auto to = result.span<T>();
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = store<T>(load(from[i]) + add);
  });
  return result.freeze();
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  constexpr std::string_view kWho = "image::adjust_contrast";
  const ImageExtents size = image_size(image, kWho);
  require_finite(factor, kWho);
  MutableTensor result = make_like(image, image.dtype());
  visit_pixels(image.dtype(), [&, times = static_cast<float>(factor)]<class T>() {
    const std::vector<float> means = channel_means(image.host_span<T>(), size);
    const T* from = image.host_span<T>().data();
    T* to = result.span<T>().data();
    for (std::int64_t y = 0; y < size.height; ++y, from += means.size(), to += means.size()) {
      for (std::size_t i = 0; i < means.size(); ++i) {
        to[i] = store<T>((load(from[i]) - means[i]) * times + means[i]);
      }
    }
  });
  return result.freeze();
}

Tensor adjust_saturation(const Tensor& image, double factor) {
  constexpr std::string_view kWho = "image::adjust_saturation";
  colour_image_size(image, kWho);
  internal::require(factor >= 0.0 && std::isfinite(factor), kWho, ": expected a factor >= 0, got ",
                    factor);
  // Value v is the maximum of the channels, and saturation s is (v - min) / v. A channel x becomes
  // v - (v - x) * t / s, where t = min(factor * s, 1) is the new saturation.
  return map_colours(image, [times = static_cast<float>(factor)](float(&pixel)[3]) {
    const float value = std::max({pixel[0], pixel[1], pixel[2]});
    const float range = value - std::min({pixel[0], pixel[1], pixel[2]});
    if (!(range > 0.0f) || !(value > 0.0f)) return;
    const float scale = std::min(times, value / range);
    for (float& channel : pixel) channel = value - (value - channel) * scale;
  });
}

Tensor adjust_hue(const Tensor& image, double delta) {
  constexpr std::string_view kWho = "image::adjust_hue";
  colour_image_size(image, kWho);
  internal::require(delta >= -1.0 && delta <= 1.0, kWho, ": expected a delta in [-1, 1], got ",
                    delta);
  // Hue in sixths of the circle: red 0, green 2, blue 4.
  return map_colours(image, [turn = static_cast<float>(delta) * 6.0f](float(&pixel)[3]) {
    const float value = std::max({pixel[0], pixel[1], pixel[2]});
    const float lowest = std::min({pixel[0], pixel[1], pixel[2]});
    const float range = value - lowest;
    if (!(range > 0.0f)) return;
    float hue = (pixel[0] - pixel[1]) / range + 4.0f;
    if (pixel[0] == value) {
      hue = (pixel[1] - pixel[2]) / range;
    } else if (pixel[1] == value) {
      hue = (pixel[2] - pixel[0]) / range + 2.0f;
    }
    hue += turn;
    hue -= 6.0f * std::floor(hue / 6.0f);
    // The hue's distance from red, green and blue determines the amount of each.
    const float amounts[3] = {std::abs(hue - 3.0f) - 1.0f, 2.0f - std::abs(hue - 2.0f),
                              2.0f - std::abs(hue - 4.0f)};
    for (int i = 0; i < 3; ++i) {
      pixel[i] = lowest + range * std::clamp(amounts[i], 0.0f, 1.0f);
    }
  });
}

Tensor per_image_standardization(const Tensor& image) {
  const ImageExtents size = image_size(image, "image::per_image_standardization");
  MutableTensor result = make_like(image, DType::kFloat32);
  const double count = static_cast<double>(image.num_elements());
  visit_pixels(image.dtype(), [&]<class T>() {
    const auto from = image.host_span<T>();
    const auto to = result.span<float>();
    const double mean =
        total(column_sums(from, size.height, [](T value) { return static_cast<double>(value); })) /
        count;
    const double variance = total(column_sums(from, size.height,
                                              [mean](T value) {
                                                const double distance =
                                                    static_cast<double>(value) - mean;
                                                return distance * distance;
                                              })) /
                            count;
    const auto middle = static_cast<float>(mean);
    const auto stddev = static_cast<float>(std::max(std::sqrt(variance), 1.0 / std::sqrt(count)));
    for (std::size_t i = 0; i < from.size(); ++i) {
      to[i] = (static_cast<float>(from[i]) - middle) / stddev;
    }
  });
  return result.freeze();
}

// Random image steps. Each step draws random numbers 0, 1, ... of its stream, in this order.

namespace {

std::int64_t below(const RandomStream& random, std::uint64_t index, std::int64_t bound) {
  return static_cast<std::int64_t>(random.below(index, static_cast<std::uint64_t>(bound)));
}

/// Returns a step that calls `fn` with a random number in [lower, upper).
ImageStep random_number_step(Tensor (*fn)(const Tensor&, double), double lower, double upper) {
  return [=](const Tensor& image, const RandomStream& random) {
    return fn(image, lower + (upper - lower) * random.uniform64(0));
  };
}

/// Returns a step that calls `fn` with probability 0.5.
ImageStep half_of_cases_step(Tensor (*fn)(const Tensor&), const char* who) {
  return [=](const Tensor& image, const RandomStream& random) {
    image_size(image, who);
    return random.uniform64(0) < 0.5 ? fn(image) : image;
  };
}

void require_range(double lower, double upper, std::string_view who) {
  internal::require(lower >= 0.0 && lower < upper && std::isfinite(upper), who,
                    ": expected 0 <= lower < upper, got lower ", lower, " and upper ", upper);
}

void require_max_delta(double max_delta, double most, std::string_view who) {
  internal::require(max_delta >= 0.0 && max_delta <= most, who, ": expected a max_delta in [0, ",
                    most, "], got ", max_delta);
}

}  // namespace

ImageStep random_crop(std::int64_t height, std::int64_t width, RandomCropOptions options) {
  require_positive(height, width, "image::random_crop");
  internal::require(options.padding >= 0, "image::random_crop: expected a padding >= 0, got ",
                    options.padding);
  return [=](const Tensor& image, const RandomStream& random) {
    const ImageExtents size = image_size(image, "image::random_crop");
    const std::int64_t rows = size.height + 2 * options.padding - height;
    const std::int64_t columns = size.width + 2 * options.padding - width;
    internal::require(rows >= 0 && columns >= 0,
                      "image::random_crop: expected an image of at least ", height, " x ", width,
                      " pixels, got ", size.height, " x ", size.width, " with a padding of ",
                      options.padding, "; try more padding or a smaller crop");
    const std::int64_t top = below(random, 0, rows + 1) - options.padding;
    const std::int64_t left = below(random, 1, columns + 1) - options.padding;
    return crop_or_pad_to_bounding_box(image, top, left, height, width, options.padding_mode);
  };
}

ImageStep random_crop(std::int64_t size, RandomCropOptions options) {
  return random_crop(size, size, options);
}

ImageStep random_flip_left_right() {
  return half_of_cases_step(flip_left_right, "image::random_flip_left_right");
}

ImageStep random_flip_up_down() {
  return half_of_cases_step(flip_up_down, "image::random_flip_up_down");
}

ImageStep random_brightness(double max_delta) {
  require_max_delta(max_delta, 1e30, "image::random_brightness");
  return random_number_step(adjust_brightness, -max_delta, max_delta);
}

ImageStep random_contrast(double lower, double upper) {
  require_range(lower, upper, "image::random_contrast");
  return random_number_step(adjust_contrast, lower, upper);
}

ImageStep random_saturation(double lower, double upper) {
  require_range(lower, upper, "image::random_saturation");
  return random_number_step(adjust_saturation, lower, upper);
}

ImageStep random_hue(double max_delta) {
  require_max_delta(max_delta, 0.5, "image::random_hue");
  return random_number_step(adjust_hue, -max_delta, max_delta);
}

ImageStep cutout(std::int64_t length, CutoutOptions options) {
  require_positive(length, length, "image::cutout");
  return [=](const Tensor& image, const RandomStream& random) {
    const ImageExtents size = image_size(image, "image::cutout");
    if (image.num_elements() == 0) return image;
    const std::int64_t top = below(random, 0, size.height) - length / 2;
    const std::int64_t left = below(random, 1, size.width) - length / 2;
    return erase(image, top, left, length, length, options.value);
  };
}

ImageStep center_crop(std::int64_t height, std::int64_t width) {
  require_positive(height, width, "image::center_crop");
  return
      [=](const Tensor& image, const RandomStream&) { return center_crop(image, height, width); };
}

ImageStep resize_with_crop_or_pad(std::int64_t height, std::int64_t width) {
  require_positive(height, width, "image::resize_with_crop_or_pad");
  return [=](const Tensor& image, const RandomStream&) {
    return resize_with_crop_or_pad(image, height, width);
  };
}

ImageStep convert_image_dtype(DType dtype) {
  return
      [=](const Tensor& image, const RandomStream&) { return convert_image_dtype(image, dtype); };
}

ImageStep per_image_standardization() {
  return [](const Tensor& image, const RandomStream&) { return per_image_standardization(image); };
}

}  // namespace tutti::image
