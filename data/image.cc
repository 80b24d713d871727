// Pictures as files: what does not depend on the format.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/image.h"

#include <algorithm>
#include <array>

#include "tutti/core/file.h"
#include "tutti/data/image_pixels.h"

namespace tutti {
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
       bytes.empty() ? "no bytes" : "other bytes");
}

Tensor read_image(const std::string& path, DecodeImageOptions options) {
  return decode_image(read_file(path), path, options);
}

}  // namespace tutti
