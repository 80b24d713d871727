// Brightness, contrast, colours and standardisation of pictures.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "data/image_pixels.h"
#include "tutti/data/image_ops.h"

namespace tutti::image {
namespace {

using internal::image_size;
using internal::ImageExtents;
using internal::visit_pixels;

/// A value as float32, white being 1.
inline float load(float value) { return value; }
inline float load(std::uint8_t value) { return static_cast<float>(value) * (1.0f / 255.0f); }

template <class T>
T store(float value);
template <>
inline float store<float>(float value) {
  return value;
}
/// tf's saturate_cast behind a scale of 255.5; NaN becomes 0.
template <>
inline std::uint8_t store<std::uint8_t>(float value) {
  const float scaled = value * 255.5f;
  const float low = scaled > 0.0f ? scaled : 0.0f;
  return static_cast<std::uint8_t>(static_cast<int>(low < 255.0f ? low : 255.0f));
}

MutableTensor make_like(const Tensor& image, DType dtype) {
  return MutableTensor(image.shape(), dtype, image.device());
}

/// Column sums: element i of the result is the sum over the rows of value i of a row. Its loop has
/// no chain of dependent additions, so that it becomes vector instructions.
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

/// The mean of the channel that value i of a row belongs to, for each i.
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
  if (size.channels != 3) {
    fail(ErrorCode::kInvalidArgument, who, ": expected 3 channels (red, green, blue), got ",
         size.channels);
  }
  return size;
}

void require_finite(double value, std::string_view who) {
  if (!std::isfinite(value)) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a finite number, got ", value);
  }
}

/// A result of the picture's type whose every pixel is fn(red, green, blue).
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
           "; try cast()");
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
  if (!(factor >= 0.0) || !std::isfinite(factor)) {
    fail(ErrorCode::kInvalidArgument, kWho, ": expected a factor of at least 0, got ", factor);
  }
  // With value v and saturation s = (v - min) / v, a channel is v - (v - x) * new s / s; the new s
  // is at most 1.
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
  if (!(delta >= -1.0 && delta <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, kWho, ": expected a delta in [-1, 1], got ", delta);
  }
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
    // How far the hue is from each pure colour decides how much of it there is.
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

}  // namespace tutti::image
