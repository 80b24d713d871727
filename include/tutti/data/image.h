// Pictures: PNG and JPEG to tensors and back, folders of them, and other sizes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// Pictures: PNG and JPEG to tensors and back, and other sizes.

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

/// In pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

/// Of resize_image().
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

// Folders of pictures, one folder per class.

/// What the labels are: int64 [] (the class), float32 [1] (of two classes), float32 [classes] with
/// one 1, or none: elements of one component, and no folders of classes.
enum class LabelMode { kInt, kBinary, kCategorical, kNone };

/// The part of the pictures that is read.
enum class Subset { kAll, kTraining, kValidation };

/// What image_folder() reads and in which form: keras.utils.image_dataset_from_directory.
struct ImageFolderOptions {
  ImageSize image_size = {256, 256};
  /// kGrayscale, kRgb or kRgba: all pictures get the same.
  ColorMode color_mode = ColorMode::kRgb;
  ResizeImageOptions resize = {};
  /// kFloat32 (values from 0 to 255) or kUInt8 (rounded).
  DType dtype = DType::kFloat32;
  LabelMode label_mode = LabelMode::kInt;
  /// The folders of the classes, in the order of the labels. Default: all folders, in ascending
  /// order. Other folders are left out.
  std::vector<std::string> class_names = {};
  /// Nothing: pictures in ascending order, class by class. Else an order drawn once from the seed.
  std::optional<std::uint64_t> seed = {};
  /// The share of the pictures that is for validation: the last ones in the order of `seed`, which
  /// must be given, the same for both subsets.
  double validation_split = 0.0;
  Subset subset = Subset::kAll;
  /// Pictures decoded at once; 1: on the caller's thread.
  int num_parallel_calls = 1;
  DecodeImageOptions decode = {};
};

/// Pictures and what is known about them.
struct ImageFolder {
  /// {features [height, width, channels], labels}. Shuffle with a buffer of paths.size() (it holds
  /// whole pictures) or by ImageFolderOptions::seed.
  Dataset dataset;
  std::vector<std::string> class_names;
  /// The pictures in the dataset's order, with their classes (empty for LabelMode::kNone).
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
};

/// The .png, .jpg and .jpeg files of `directory`: of each class's folder with all folders below.
/// Pictures are read, decoded and resized when they are asked for; a damaged one is refused with
/// its path. Files of other names, and names that begin with a dot, are left out.
/// keras.utils.image_dataset_from_directory without shuffling and batching. Throws kNotFound where
/// the directory, a class or every picture is missing, kInvalidArgument for options that do not
/// fit, kUnimplemented for .gif, .bmp and .webp files.
ImageFolder image_folder(const std::string& directory, ImageFolderOptions options = {});

}  // namespace tutti
