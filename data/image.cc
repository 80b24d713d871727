// Pictures: from files and to files, and other sizes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/file_kind.h"
#include "data/image_pixels.h"
#include "data/input_file.h"

namespace tutti {

// Pictures as files: what does not depend on the format.

namespace {

std::int64_t channels_of(ColorMode mode) {
  if (mode == ColorMode::kGrayscale) return 1;
  return mode == ColorMode::kRgb ? 3 : 4;
}

// The weights of ITU-R BT.601 in 16 bits.
std::uint8_t gray_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >>
                                   16);
}

void convert_pixel(const std::uint8_t* from, std::int64_t from_channels, std::uint8_t* to,
                   std::int64_t to_channels) {
  const bool from_gray = from_channels <= 2;
  if (to_channels == 1) {
    to[0] = from_gray ? from[0] : gray_of(from);
    return;
  }
  for (int i = 0; i < 3; ++i) to[i] = from_gray ? from[0] : from[i];
  const bool has_alpha = from_channels % 2 == 0;
  if (to_channels == 4) to[3] = has_alpha ? from[from_channels - 1] : 255;
}

struct Format {
  std::string_view begin;
  const char* name;
};

// Formats that are known well enough to be named.
const char* name_of_format(std::string_view bytes) {
  static constexpr std::array<Format, 5> kFormats = {{{"GIF8", "GIF"},
                                                      {"BM", "BMP"},
                                                      {"RIFF", "WebP"},
                                                      {{"II*\0", 4}, "TIFF"},
                                                      {{"MM\0*", 4}, "TIFF"}}};
  for (const Format& format : kFormats) {
    if (bytes.starts_with(format.begin)) return format.name;
  }
  return nullptr;
}

}  // namespace

namespace internal {

void require_pixels(std::int64_t height, std::int64_t width, const std::string& source,
                    const DecodeImageOptions& options) {
  TUTTI_CHECK(height > 0 && width > 0, source, ": a picture of ", height, " x ", width);
  if (height > options.max_pixels / width) {
    fail(ErrorCode::kResourceExhausted, source, ": offset 0: expected at most ", options.max_pixels,
         " pixels, got ", height, " x ", width, "; try DecodeImageOptions::max_pixels");
  }
}

Tensor to_color_mode(const Tensor& image, ColorMode mode) {
  const Shape& shape = image.shape();
  if (mode == ColorMode::kUnchanged || shape[2] == channels_of(mode)) return image;
  MutableTensor converted(shape.with_dim(2, channels_of(mode)), DType::kUInt8, image.device());
  const std::uint8_t* from = image.host_span<std::uint8_t>().data();
  std::uint8_t* to = converted.span<std::uint8_t>().data();
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    convert_pixel(from, shape[2], to, channels_of(mode));
    from += shape[2];
    to += channels_of(mode);
  }
  return converted.freeze();
}

void require_image(const Tensor& image, const char* who) {
  if (image.dtype() == DType::kUInt8 && image.rank() == 3 && image.num_elements() > 0) return;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected a picture, uint8 [height, width, channels], got ", image.dtype(), " of shape ",
       image.shape(), "; try cast() and one picture of a batch");
}

}  // namespace internal

Tensor decode_image(std::string_view bytes, const std::string& source, DecodeImageOptions options) {
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, source, options);
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, source, options);
  if (const char* name = name_of_format(bytes)) {
    fail(ErrorCode::kUnimplemented, source, ": offset 0: expected a PNG or JPEG picture, got ",
         name, "; try to convert the file");
  }
  fail(ErrorCode::kDataLoss, source, ": offset 0: expected a PNG or JPEG picture, got ",
       internal::describe_file(bytes));
}

Tensor read_image(const std::string& path, DecodeImageOptions options) {
  return decode_image(internal::read_file_for("read_image", path), path, options);
}

// Pictures of another size.

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
