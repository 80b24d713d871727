// Pictures of another size.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/resize_image.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tutti {
namespace {

/// A part of the picture along one axis.
struct Window {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// Where a new pixel comes from along one axis: (1 - weight) * lower + weight * upper.
struct Source {
  std::int64_t lower = 0, upper = 0;
  float weight = 0.0f;
};

// In float32, as tf computes them.
std::vector<Source> sources_of(Window window, std::int64_t new_size, Interpolation how) {
  const float scale = static_cast<float>(window.size) / static_cast<float>(new_size);
  const std::int64_t last = window.size - 1;
  std::vector<Source> sources;
  for (std::int64_t i = 0; i < new_size; ++i) {
    const float center = (static_cast<float>(i) + 0.5f) * scale;
    Source source;
    if (how == Interpolation::kNearest) {
      source.lower = source.upper = std::min(static_cast<std::int64_t>(std::floor(center)), last);
    } else {
      const float floor = std::floor(center - 0.5f);
      source.lower = std::clamp<std::int64_t>(static_cast<std::int64_t>(floor), 0, last);
      source.upper = std::clamp<std::int64_t>(static_cast<std::int64_t>(floor) + 1, 0, last);
      source.weight = center - 0.5f - floor;
    }
    source.lower += window.begin;
    source.upper += window.begin;
    sources.push_back(source);
  }
  return sources;
}

template <class T>
void resize_rows(const T* pixels, const Shape& shape, const std::vector<Source>& rows,
                 const std::vector<Source>& columns, float* to) {
  const std::int64_t channels = shape[2], row_size = shape[1] * channels;
  const auto between = [](float a, float b, float weight) { return a + (b - a) * weight; };
  for (const Source& row : rows) {
    const T* top = pixels + row.lower * row_size;
    const T* bottom = pixels + row.upper * row_size;
    for (const Source& column : columns) {
      const std::int64_t left = column.lower * channels, right = column.upper * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        const auto value = [&](const T* from, std::int64_t place) {
          return static_cast<float>(from[place + c]);
        };
        const float above = between(value(top, left), value(top, right), column.weight);
        const float below = between(value(bottom, left), value(bottom, right), column.weight);
        *to++ = between(above, below, row.weight);
      }
    }
  }
}

// The middle of `length`, as long as `wanted` or less.
Window middle(std::int64_t length, std::int64_t wanted) {
  const std::int64_t size = std::clamp<std::int64_t>(wanted, 1, length);
  return {(length - size) / 2, size};
}

}  // namespace

Tensor resize_image(const Tensor& image, ImageSize size, ResizeImageOptions options) {
  const bool known = image.dtype() == DType::kUInt8 || image.dtype() == DType::kFloat32;
  if (!known || image.rank() != 3 || image.num_elements() == 0) {
    fail(ErrorCode::kInvalidArgument,
         "resize_image: expected a picture, uint8 or float32 [height, width, channels], got ",
         image.dtype(), " of shape ", image.shape());
  }
  if (size.height < 1 || size.width < 1) {
    fail(ErrorCode::kInvalidArgument, "resize_image: expected a size of at least 1 x 1, got ",
         size.height, " x ", size.width);
  }
  const Shape& shape = image.shape();
  Window rows{0, shape[0]}, columns{0, shape[1]};
  if (options.crop_to_aspect_ratio) {
    rows = middle(shape[0], shape[1] * size.height / size.width);
    columns = middle(shape[1], shape[0] * size.width / size.height);
  }
  MutableTensor resized({size.height, size.width, shape[2]}, DType::kFloat32, image.device());
  const auto from_rows = sources_of(rows, size.height, options.interpolation);
  const auto from_columns = sources_of(columns, size.width, options.interpolation);
  float* to = resized.span<float>().data();
  if (image.dtype() == DType::kUInt8) {
    resize_rows(image.host_span<std::uint8_t>().data(), shape, from_rows, from_columns, to);
  } else {
    resize_rows(image.host_span<float>().data(), shape, from_rows, from_columns, to);
  }
  return resized.freeze();
}

}  // namespace tutti
