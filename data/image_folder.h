// Folders of pictures, one folder per class.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/image.h"

namespace tutti {

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
  /// Of the pictures in the dataset's order, with their classes (empty for LabelMode::kNone).
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
