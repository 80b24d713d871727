// MNIST and its likes: four IDX files in a folder; pictures as training wants them.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "tutti/data/readers.h"

namespace tutti {

// MNIST and its likes: four IDX files in a folder.

namespace {

constexpr const char* kSystemFolder = "/usr/share/datasets/fashion-mnist";

std::vector<std::string> folders_to_search(const std::string& directory) {
  if (!directory.empty()) return {directory};
  const char* from_environment = std::getenv("TUTTI_DATA_DIR");
  if (!from_environment || !*from_environment) return {kSystemFolder};
  return {from_environment, kSystemFolder};
}

std::string find_file(const std::vector<std::string>& folders, const std::string& name) {
  for (const std::string& folder : folders) {
    for (const char* ending : {"", ".gz"}) {
      const auto path = std::filesystem::path(folder) / (name + ending);
      if (std::filesystem::exists(path)) return path.string();
    }
  }
  fail(ErrorCode::kNotFound, "read_mnist: failed to find file: ", name,
       "; expected it, plain or as .gz, in '", join(folders, "' or '"),
       "'; try apt-get install dataset-fashion-mnist, or set TUTTI_DATA_DIR to the folder that has "
       "it");
}

void require_images_and_labels(const Tensor& images, const Tensor& labels,
                               const std::string& images_path, const std::string& labels_path) {
  if (images.dtype() != DType::kUInt8 || images.rank() != 3) {
    fail(ErrorCode::kDataLoss, images_path, ": offset 0: expected uint8 images of rank 3, got ",
         images.dtype(), " of shape ", images.shape());
  }
  if (labels.dtype() != DType::kUInt8 || labels.rank() != 1) {
    fail(ErrorCode::kDataLoss, labels_path, ": offset 0: expected uint8 labels of rank 1, got ",
         labels.dtype(), " of shape ", labels.shape());
  }
  if (labels.shape()[0] != images.shape()[0]) {
    fail(ErrorCode::kDataLoss, labels_path, ": offset 4: expected ", images.shape()[0],
         " labels for the images of ", images_path, ", got ", labels.shape()[0]);
  }
}

}  // namespace

ImageData read_mnist(const std::string& directory, Split split) {
  const std::vector<std::string> folders = folders_to_search(directory);
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  const std::string images_path = find_file(folders, prefix + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folders, prefix + "-labels-idx1-ubyte");
  const Tensor images = read_idx(images_path);
  const Tensor labels = read_idx(labels_path);
  require_images_and_labels(images, labels, images_path, labels_path);
  const Shape& shape = images.shape();
  return {images.reshaped({shape[0], shape[1], shape[2], 1}), labels};
}

Dataset load_mnist(const std::string& directory, Split split) {
  return image_dataset(read_mnist(directory, split));
}

// Pictures as training wants them.

namespace {

Tensor scaled_to_one(const Tensor& images) {
  MutableTensor scaled(images.shape(), DType::kFloat32, images.device());
  const auto from = images.host_span<std::uint8_t>();
  const auto to = scaled.span<float>();
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<float>(from[i]) / 255.0f;
  return scaled.freeze();
}

Tensor as_int64(const Tensor& labels) {
  MutableTensor wide(labels.shape(), DType::kInt64, labels.device());
  const auto from = labels.host_span<std::uint8_t>();
  const auto to = wide.span<std::int64_t>();
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i];
  return wide.freeze();
}

}  // namespace

Dataset image_dataset(const ImageData& data) {
  return Dataset::from_tensor_slices({scaled_to_one(data.images), as_int64(data.labels)});
}

}  // namespace tutti
