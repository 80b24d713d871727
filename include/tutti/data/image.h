// Images: conversion between PNG or JPEG files and tensors, resizing, and folders of images.
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

// PNG and JPEG files.

/// Channels of a decoded image: 1 (grey), 3 or 4. kUnchanged keeps those of the file: 1, 2 (grey
/// with alpha), 3 or 4.
enum class ColorMode { kUnchanged, kGrayscale, kRgb, kRgba };

struct DecodeImageOptions {
  /// Channels of the result. Grey is 0.299 red + 0.587 green + 0.114 blue; alpha is dropped, not
  /// blended; missing alpha becomes 255.
  ColorMode color_mode = ColorMode::kUnchanged;
  /// Maximum number of pixels that a file may declare. A larger image is rejected before memory is
  /// allocated, because small files can unpack to any size.
  std::int64_t max_pixels = std::int64_t{1} << 27;
};

/// Decode `bytes` to an image, uint8 [height, width, channels]. PNG: all kinds; 16-bit values keep
/// their upper 8 bits, palettes become colours (tf.io.decode_png). JPEG: grey, colour, and CMYK,
/// which becomes RGB (tf.io.decode_jpeg); the orientation stored in the file is ignored.
/// decode_image() accepts both formats. `source` names the bytes in errors. Throw kDataLoss with
/// the offset for damaged or truncated files, kResourceExhausted for too many pixels,
/// kUnimplemented for other formats and in builds without libpng or libjpeg. Thread-safe.
Tensor decode_png(std::string_view bytes, const std::string& source,
                  DecodeImageOptions options = {});
Tensor decode_jpeg(std::string_view bytes, const std::string& source,
                   DecodeImageOptions options = {});
Tensor decode_image(std::string_view bytes, const std::string& source,
                    DecodeImageOptions options = {});
/// Same as decode_image(), but reads a file. Throws kNotFound or kUnavailable, naming the path.
Tensor read_image(const std::string& path, DecodeImageOptions options = {});

/// Returns a PNG file of `image`, uint8 [height, width, channels] with 1 to 4 channels (2: grey and
/// alpha). Throws kInvalidArgument for other tensors.
std::string encode_png(const Tensor& image);

struct EncodeJpegOptions {
  /// From 1 (smallest file) to 100 (best quality).
  int quality = 95;
};
/// Returns a JPEG file of `image`, uint8 [height, width, channels] with 1 or 3 channels, each side
/// up to 65500. Throws kInvalidArgument for other tensors.
std::string encode_jpeg(const Tensor& image, EncodeJpegOptions options = {});

// Resizing.

/// Size in pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

/// Options for resize_image().
struct ResizeImageOptions {
  Interpolation interpolation = Interpolation::kBilinear;
  /// If true, crops the image around its centre to the new aspect ratio instead of distorting it
  /// (Keras's crop_to_aspect_ratio).
  bool crop_to_aspect_ratio = false;
};

/// Resizes `image` [height, width, channels], uint8 or float32, to float32 [size.height,
/// size.width, channels] in the same range. Pixel centres are at half-integers and the border is
/// replicated, as in tf.image.resize without antialiasing; a bilinear pixel is interpolated from
/// the four nearest, even if the image shrinks. Runs on the host; not recorded on tapes. Throws
/// kInvalidArgument for other tensors, empty images and sizes below 1. Thread-safe.
Tensor resize_image(const Tensor& image, ImageSize size, ResizeImageOptions options = {});

// Folders of images, one folder per class.

/// Form of the labels. kInt: the class, int64 []. kBinary: float32 [1], for two classes.
/// kCategorical: one-hot, float32 [classes]. kNone: elements have no labels, and there are no class
/// folders.
enum class LabelMode { kInt, kBinary, kCategorical, kNone };

/// Images to read: all, or those for training or validation (ImageFolderOptions::validation_split).
enum class Subset { kAll, kTraining, kValidation };

/// Options for image_folder(), as in keras.utils.image_dataset_from_directory.
struct ImageFolderOptions {
  ImageSize image_size = {256, 256};
  /// kGrayscale, kRgb or kRgba, for all images.
  ColorMode color_mode = ColorMode::kRgb;
  ResizeImageOptions resize = {};
  /// kFloat32 (values from 0 to 255) or kUInt8 (rounded).
  DType dtype = DType::kFloat32;
  LabelMode label_mode = LabelMode::kInt;
  /// Class folders, in label order; other folders are ignored. Default: all folders, in ascending
  /// order.
  std::vector<std::string> class_names = {};
  /// Seed for a shuffled order, which is drawn once. Default: ascending order, class by class.
  std::optional<std::uint64_t> seed = {};
  /// Fraction of the images used for validation: the last ones in shuffled order. `seed` must be
  /// set, to the same value for both subsets.
  double validation_split = 0.0;
  Subset subset = Subset::kAll;
  /// Number of images decoded concurrently; 1: the caller's thread decodes them.
  int num_parallel_calls = 1;
  DecodeImageOptions decode = {};
};

/// Dataset of images, with their paths, labels and class names.
struct ImageFolder {
  /// Elements {features [height, width, channels], labels}. To shuffle them, set
  /// ImageFolderOptions::seed or call shuffle(paths.size()), whose buffer holds all images.
  Dataset dataset;
  std::vector<std::string> class_names;
  /// Paths and classes of the images, in the dataset's order. `labels` is empty for
  /// LabelMode::kNone.
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
};

/// Returns a dataset of the .png, .jpg and .jpeg files in `directory`: those in each class's folder
/// and in all folders below it. Images are read, decoded and resized on demand; an error about a
/// damaged image names its path. Other files, and names that begin with a dot, are ignored. Like
/// keras.utils.image_dataset_from_directory without shuffling or batching. Throws kNotFound if the
/// directory or the folder of a class is missing, or if there are no images; kInvalidArgument for
/// options that contradict the folders; and kUnimplemented for .gif, .bmp and .webp files.
ImageFolder image_folder(const std::string& directory, ImageFolderOptions options = {});

}  // namespace tutti
