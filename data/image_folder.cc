// Reads folders of images.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"
#include "tutti/data/image.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "tutti/core/random.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

struct ImageFile {
  std::string path;
  std::int64_t label = 0;
};

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_image(const fs::path& path) {
  const std::string extension = internal::lower_case(path.extension().string());
  if (extension == ".gif" || extension == ".bmp" || extension == ".webp") {
    fail(ErrorCode::kUnimplemented, "image_folder: expected .png, .jpg and .jpeg images, got '",
         path.string(), "'; convert it or move it");
  }
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

[[noreturn]] void fail_reading(const std::string& directory, const std::error_code& error) {
  const bool missing = error == std::errc::no_such_file_or_directory;
  fail(missing ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
       "image_folder: cannot read folder '", directory, "': ", error.message());
}

std::vector<std::string> folders_in(const std::string& directory) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error) fail_reading(directory, error);
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries) {
    if (std::error_code unknown; entry.is_directory(unknown) && !is_hidden(entry.path())) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the paths of the images below `folder`, in ascending order.
std::vector<std::string> images_below(const fs::path& folder) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  if (error) fail_reading(folder.string(), error);
  std::vector<std::string> paths;
  while (entry != fs::recursive_directory_iterator()) {
    const fs::path& path = entry->path();
    if (is_hidden(path)) {
      entry.disable_recursion_pending();
    } else if (std::error_code unknown; entry->is_regular_file(unknown) && is_image(path)) {
      paths.push_back(path.string());
    }
    entry.increment(error);
    if (error) fail_reading(folder.string(), error);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> find_classes(const std::string& directory,
                                      const ImageFolderOptions& options) {
  const std::vector<std::string> found = folders_in(directory);
  if (options.label_mode == LabelMode::kNone) return {};
  if (found.empty()) {
    fail(ErrorCode::kNotFound, "image_folder: expected a folder per class in '", directory,
         "', got none; use LabelMode::kNone for images without classes");
  }
  for (const std::string& name : options.class_names) {
    internal::require(std::ranges::count(options.class_names, name) <= 1,
                      "image_folder: the class '", name, "' is named twice");
    if (std::ranges::find(found, name) == found.end()) {
      fail(ErrorCode::kNotFound, "image_folder: no folder for class '", name, "' in '", directory,
           "'; expected one of [", join(found), "]");
    }
  }
  return options.class_names.empty() ? found : options.class_names;
}

std::vector<ImageFile> find_images(const std::string& directory,
                                   const std::vector<std::string>& classes) {
  std::vector<ImageFile> images;
  if (classes.empty()) {
    for (std::string& path : images_below(directory)) images.push_back({std::move(path), 0});
  }
  if (classes.empty() && images.empty()) {
    fail(ErrorCode::kNotFound, "image_folder: expected a .png, .jpg or .jpeg file in '", directory,
         "', got none");
  }
  for (std::size_t label = 0; label < classes.size(); ++label) {
    const fs::path folder = fs::path(directory) / classes[label];
    std::vector<std::string> paths = images_below(folder);
    if (paths.empty()) {
      fail(ErrorCode::kNotFound, "image_folder: class '", classes[label],
           "': expected a .png, .jpg or .jpeg file in '", folder.string(),
           "', got none; remove the folder, or leave the class out of "
           "ImageFolderOptions::class_names");
    }
    for (std::string& path : paths) {
      images.push_back({std::move(path), static_cast<std::int64_t>(label)});
    }
  }
  return images;
}

// Keeps only the images of options.subset. As in Keras, the last int(validation_split * count)
// images are the validation subset.
void cut(std::vector<ImageFile>& images, const ImageFolderOptions& options) {
  if (options.subset == Subset::kAll) return;
  const auto count = static_cast<double>(images.size());
  const auto held = static_cast<std::ptrdiff_t>(options.validation_split * count);
  const auto border = images.end() - held;
  if (options.subset == Subset::kTraining) {
    images.erase(border, images.end());
  } else {
    images.erase(images.begin(), border);
  }
  internal::require(!images.empty(),
                    "image_folder: expected at least one image in the subset, "
                    "got 0 of ",
                    count, " images with validation_split ", options.validation_split);
}

void require_options(const ImageFolderOptions& options) {
  constexpr const char* kWho = "image_folder: ";
  internal::require(options.image_size.height >= 1 && options.image_size.width >= 1, kWho,
                    "expected an image_size of at least 1 x 1, got ", options.image_size.height,
                    " x ", options.image_size.width);
  internal::require(options.color_mode != ColorMode::kUnchanged, kWho,
                    "expected one color_mode for all images, got kUnchanged; use kRgb");
  if (options.dtype != DType::kFloat32 && options.dtype != DType::kUInt8) {
    fail(ErrorCode::kInvalidArgument, kWho, "expected dtype float32 or uint8, got ", options.dtype,
         "; call cast() in map()");
  }
  const double split = options.validation_split;
  internal::require(split >= 0.0 && split < 1.0, kWho, "expected 0 <= validation_split < 1, got ",
                    split);
  internal::require((split > 0.0) == (options.subset != Subset::kAll), kWho,
                    "expected a subset (kTraining or kValidation) together with validation_split, "
                    "got only one of them");
  if (split > 0.0 && !options.seed) {
    fail(ErrorCode::kInvalidArgument, kWho,
         "expected a seed with validation_split, got none: without a seed, only the last "
         "classes would be used for validation; use the same seed for both subsets");
  }
}

Tensor label_tensor(std::int64_t label, std::size_t num_classes, LabelMode mode) {
  if (mode == LabelMode::kInt) return Tensor::from<std::int64_t>({}, {label});
  if (mode == LabelMode::kBinary) return Tensor::from<float>({1}, {static_cast<float>(label)});
  std::vector<float> row(num_classes, 0.0f);
  row[static_cast<std::size_t>(label)] = 1.0f;
  return Tensor::from<float>({static_cast<std::int64_t>(num_classes)}, row);
}

Tensor rounded(const Tensor& image) {
  MutableTensor bytes(image.shape(), DType::kUInt8, image.device());
  const auto from = image.host_span<float>();
  const auto to = bytes.span<std::uint8_t>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i] = static_cast<std::uint8_t>(std::floor(from[i] + 0.5f));
  }
  return bytes.freeze();
}

Element load(const ImageFile& file, std::size_t num_classes, const ImageFolderOptions& options) {
  const Tensor image = read_image(file.path, options.decode);
  const Tensor resized = resize_image(image, options.image_size, options.resize);
  std::vector<Tensor> tensors = {options.dtype == DType::kUInt8 ? rounded(resized) : resized};
  if (options.label_mode != LabelMode::kNone) {
    tensors.push_back(label_tensor(file.label, num_classes, options.label_mode));
  }
  return Element(std::move(tensors));
}

}  // namespace

ImageFolder image_folder(const std::string& directory, ImageFolderOptions options) {
  require_options(options);
  std::vector<std::string> classes = find_classes(directory, options);
  if (options.label_mode == LabelMode::kBinary && classes.size() != 2) {
    fail(ErrorCode::kInvalidArgument,
         "image_folder: expected two classes for LabelMode::kBinary, got [", join(classes), "]");
  }
  std::vector<ImageFile> images = find_images(directory, classes);
  if (options.seed) {
    internal::shuffle(images, RandomStream({.seed = *options.seed, .purpose = kShufflePurpose}));
  }
  cut(images, options);
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
  for (const ImageFile& file : images) {
    paths.push_back(file.path);
    if (options.label_mode != LabelMode::kNone) labels.push_back(file.label);
  }
  const MapOptions how{options.num_parallel_calls};
  options.decode.color_mode = options.color_mode;
  // State that all passes and threads share.
  struct Shared {
    std::vector<ImageFile> images;
    std::size_t num_classes;
    ImageFolderOptions options;
  };
  const auto shared =
      std::make_shared<const Shared>(Shared{std::move(images), classes.size(), std::move(options)});
  Dataset dataset =
      Dataset::range(std::ssize(paths))
          .map(
              [shared](const Element& index) {
                const auto place = static_cast<std::size_t>(index[0].item_int());
                return load(shared->images[place], shared->num_classes, shared->options);
              },
              how);
  return {std::move(dataset), std::move(classes), std::move(paths), std::move(labels)};
}

}  // namespace tutti
