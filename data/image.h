// Pictures: PNG and JPEG to tensors and back, and other sizes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/tensor/op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// Pictures as files: PNG and JPEG to tensors and back.

/// What a pixel is made of: 1, 3 or 4 channels, or those of the file (1, 2 with alpha, 3 or 4).
enum class ColorMode { kUnchanged, kGrayscale, kRgb, kRgba };

struct DecodeImageOptions {
  /// Grey is 0.299 red + 0.587 green + 0.114 blue; alpha is dropped, not blended; alpha that a file
  /// does not have is 255.
  ColorMode color_mode = ColorMode::kUnchanged;
  /// A file that says it is larger is refused before memory is taken: small files can unpack to
  /// anything.
  std::int64_t max_pixels = std::int64_t{1} << 27;
};

/// The picture that `bytes` hold, uint8 [height, width, channels]. PNG: all kinds; of 16 bits the
/// upper 8 are kept, palettes become colours (tf.io.decode_png). JPEG: grey, colour and CMYK, which
/// becomes RGB (tf.io.decode_jpeg); what is stored of its orientation is ignored. decode_image()
/// takes either. `source` names the bytes in errors: kDataLoss with offset for damaged or truncated
/// files, kResourceExhausted for too many pixels, kUnimplemented for other formats and in builds
/// without libpng or libjpeg. Threads: any.
Tensor decode_png(std::string_view bytes, const std::string& source,
                  DecodeImageOptions options = {});
Tensor decode_jpeg(std::string_view bytes, const std::string& source,
                   DecodeImageOptions options = {});
Tensor decode_image(std::string_view bytes, const std::string& source,
                    DecodeImageOptions options = {});
/// decode_image() of a file. Throws kNotFound or kUnavailable naming the path.
Tensor read_image(const std::string& path, DecodeImageOptions options = {});

/// A PNG file of `image`, uint8 [height, width, channels] with 1 to 4 channels (2: grey and alpha).
/// Throws kInvalidArgument for others.
std::string encode_png(const Tensor& image);

struct EncodeJpegOptions {
  /// 1 (small) to 100 (like the original).
  int quality = 95;
};
/// A JPEG file of `image`, uint8 [height, width, channels] with 1 or 3 channels, each side up to
/// 65500. Throws kInvalidArgument for others.
std::string encode_jpeg(const Tensor& image, EncodeJpegOptions options = {});

// Pictures of another size.

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

struct ResizeImageOptions {
  Interpolation interpolation = Interpolation::kBilinear;
  /// Takes the largest part in the middle that has the new picture's proportions, instead of
  /// distorting (Keras's crop_to_aspect_ratio).
  bool crop_to_aspect_ratio = false;
};

/// `image` [height, width, channels], uint8 or float32, as float32 [size.height, size.width,
/// channels] in the same range. Pixel centres are at half numbers and the border is repeated, as in
/// tf.image.resize without antialiasing; a bilinear pixel is made of the four nearest, also where
/// the picture gets smaller. On the host; not recorded on tapes. Throws kInvalidArgument for other
/// tensors, empty pictures and sizes below 1. Threads: any.
Tensor resize_image(const Tensor& image, ImageSize size, ResizeImageOptions options = {});

}  // namespace tutti
