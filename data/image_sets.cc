// Image data sets: MNIST's files in the IDX format, and the binary version of CIFAR-10.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "core/file_kind.h"
#include "data/image_sets.h"
#include "data/input_file.h"
#include "data/tar_reader.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using internal::fail_at;

constexpr std::size_t kSide = 32;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kPlaneBytes = kSide * kSide;
constexpr std::size_t kImageBytes = kPlaneBytes * kChannels;
constexpr std::size_t kRecordBytes = 1 + kImageBytes;
constexpr unsigned char kNumClasses = 10;

void interleave_planes(const unsigned char* planes, std::uint8_t* image) {
  for (std::size_t pixel = 0; pixel < kPlaneBytes; ++pixel) {
    for (std::size_t channel = 0; channel < kChannels; ++channel) {
      image[pixel * kChannels + channel] = planes[channel * kPlaneBytes + pixel];
    }
  }
}

ImageData concatenate(const std::vector<ImageData>& parts) {
  const NoDeviceScope they_are_on_the_host;
  std::vector<Tensor> images, labels;
  for (const ImageData& part : parts) {
    images.push_back(part.images);
    labels.push_back(part.labels);
  }
  return {concat(images, 0), concat(labels, 0)};
}

namespace fs = std::filesystem;

constexpr const char* kFolder = "cifar-10-batches-bin";
constexpr const char* kArchive = "cifar-10-binary.tar.gz";

std::vector<std::string> file_names(Split split) {
  if (split == Split::kTest) return {"test_batch.bin"};
  std::vector<std::string> files;
  for (int i = 1; i <= 5; ++i) files.push_back(concat("data_batch_", i, ".bin"));
  return files;
}

/// Returns the first of two folders (`directory` and its subfolder) that contains one of the files;
/// empty if neither does.
fs::path find_folder(const fs::path& directory, const std::vector<std::string>& files) {
  for (const fs::path& folder : {directory, directory / kFolder}) {
    const auto has = [&](const std::string& file) { return fs::exists(folder / file); };
    if (std::ranges::any_of(files, has)) return folder;
  }
  return {};
}

/// Returns `directory` if it is a file (the archive itself), else the archive in this folder; empty
/// if there is no archive.
fs::path find_archive(const fs::path& directory) {
  if (fs::is_regular_file(directory)) return directory;
  return fs::is_regular_file(directory / kArchive) ? directory / kArchive : fs::path();
}

[[noreturn]] void fail_not_found(const std::string& file, const fs::path& directory) {
  fail(ErrorCode::kNotFound, "read_cifar10: failed to find file: ", file, "; expected it in '",
       directory.string(), "' or '", (directory / kFolder).string(), "', or the archive ", kArchive,
       " in '", directory.string(), "'; download the archive from the CIFAR-10 home page to '",
       directory.string(), "'");
}

std::vector<ImageData> read_folder(const fs::path& folder, const fs::path& directory,
                                   const std::vector<std::string>& files) {
  std::vector<ImageData> parts;
  for (const std::string& file : files) {
    if (!fs::exists(folder / file)) fail_not_found(file, directory);
    parts.push_back(read_cifar10_file((folder / file).string()));
  }
  return parts;
}

std::vector<ImageData> read_archive(const fs::path& archive,
                                    const std::vector<std::string>& files) {
  internal::TarReader reader{internal::InputFile(archive.string())};
  std::map<std::string, ImageData> found;
  while (const auto entry = reader.next()) {
    const std::string name = fs::path(entry->name).filename().string();
    if (std::ranges::find(files, name) == files.end()) continue;
    found[name] = parse_cifar10(reader.read(), concat(archive.string(), ": ", entry->name));
  }
  std::vector<ImageData> parts;
  for (const std::string& file : files) {
    if (!found.contains(file)) {
      fail(ErrorCode::kNotFound, "read_cifar10: failed to find file: ", file, "; expected it in '",
           archive.string(),
           "', which does not contain that file; is this archive the binary version of CIFAR-10?");
    }
    parts.push_back(found.at(file));
  }
  return parts;
}

}  // namespace

ImageData parse_cifar10(std::string_view bytes, const std::string& source) {
  const std::size_t rows = bytes.size() / kRecordBytes;
  if (rows == 0 || bytes.size() % kRecordBytes != 0) {
    fail_at(source, rows * kRecordBytes, "the file ends within a record; expected records of ",
            kRecordBytes, " bytes, got ", bytes.size() - rows * kRecordBytes, " bytes after ", rows,
            " records", internal::kind_note(bytes));
  }
  constexpr auto kLength = static_cast<std::int64_t>(kSide);
  const auto count = static_cast<std::int64_t>(rows);
  const MutableTensor images({count, kLength, kLength, kChannels}, DType::kUInt8, Device{});
  const MutableTensor labels({count}, DType::kUInt8, Device{});
  for (std::size_t row = 0; row < rows; ++row) {
    const auto* record = reinterpret_cast<const unsigned char*>(bytes.data()) + row * kRecordBytes;
    if (record[0] >= kNumClasses) {
      fail_at(source, row * kRecordBytes, "not a CIFAR-10 record; expected a label below ",
              int{kNumClasses}, ", got ", int{record[0]}, internal::kind_note(bytes));
    }
    labels.span<std::uint8_t>()[row] = record[0];
    interleave_planes(record + 1, images.span<std::uint8_t>().data() + row * kImageBytes);
  }
  return {images.freeze(), labels.freeze()};
}

ImageData read_cifar10_file(const std::string& path) {
  return internal::name_when_out_of_memory(path, [&] {
    return parse_cifar10(internal::read_plain_or_gzip("read_cifar10_file", path), path);
  });
}

ImageData read_cifar10(const std::string& directory, Split split) {
  const std::vector<std::string> files = file_names(split);
  if (const fs::path folder = find_folder(directory, files); !folder.empty()) {
    return concatenate(read_folder(folder, directory, files));
  }
  const fs::path archive = find_archive(directory);
  if (archive.empty()) fail_not_found(files.front(), directory);
  return internal::name_when_out_of_memory(
      archive.string(), [&] { return concatenate(read_archive(archive, files)); });
}

// The IDX format.

namespace {

constexpr std::size_t kMagicBytes = 4;

unsigned byte_at(std::string_view bytes, std::size_t offset) {
  return static_cast<unsigned char>(bytes[offset]);
}

DType element_type(std::string_view bytes, const std::string& source) {
  constexpr std::size_t kOffset = 2;
  switch (const unsigned code = byte_at(bytes, kOffset)) {
    case 0x08:
      return DType::kUInt8;
    case 0x0C:
      return DType::kInt32;
    case 0x0D:
      return DType::kFloat32;
    case 0x0E:
      return DType::kFloat64;
    case 0x09:
    case 0x0B:
      fail(ErrorCode::kUnimplemented, source, ": offset ", kOffset, ": IDX elements of type ",
           code == 0x09 ? "0x09 (signed byte)" : "0x0B (short)",
           " have no tensor type; expected 0x08 (unsigned byte), 0x0C (int), 0x0D (float) or 0x0E "
           "(double); convert the file");
    default:
      fail_at(source, kOffset,
              "wrong IDX magic number; expected element type 0x08, 0x0C, 0x0D or "
              "0x0E, got ",
              code);
  }
}

Shape read_shape(std::string_view bytes, const std::string& source) {
  const unsigned rank = byte_at(bytes, 3);
  if (rank > static_cast<unsigned>(Shape::kMaxRank)) {
    fail_at(source, 3, "expected at most ", Shape::kMaxRank, " dimensions, got ", rank);
  }
  if (bytes.size() < kMagicBytes + 4 * std::size_t{rank}) {
    fail_at(source, bytes.size(), "the file ends within its header; expected ",
            kMagicBytes + 4 * std::size_t{rank}, " bytes for ", rank, " dimensions, got ",
            bytes.size());
  }
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      dims[i] = dims[i] << 8 | byte_at(bytes, kMagicBytes + 4 * i + j);
    }
  }
  const std::span<const std::int64_t> all(dims.data(), rank);
  if (!Shape::count(all)) {
    fail_at(source, kMagicBytes, "expected smaller dimensions, got [", join(all), "]");
  }
  return Shape(all);
}

std::size_t checked_data_bytes(const Shape& shape, DType dtype, const std::string& source) {
  std::size_t size = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(shape.num_elements()), size_of(dtype),
                             &size)) {
    fail_at(source, kMagicBytes, "expected a tensor of fewer than 2^64 bytes, got ", shape);
  }
  return size;
}

}  // namespace

Tensor parse_idx(std::string_view bytes, const std::string& source) {
  if (bytes.size() < kMagicBytes) {
    fail_at(source, bytes.size(), "the file ends within its header; expected at least ",
            kMagicBytes, " bytes, got ", bytes.size(), internal::kind_note(bytes));
  }
  if (byte_at(bytes, 0) != 0 || byte_at(bytes, 1) != 0) {
    fail_at(source, 0, "wrong IDX magic number; expected two zero bytes, got ", byte_at(bytes, 0),
            " and ", byte_at(bytes, 1), internal::kind_note(bytes));
  }
  const DType dtype = element_type(bytes, source);
  const Shape shape = read_shape(bytes, source);
  const std::size_t header = kMagicBytes + 4 * static_cast<std::size_t>(shape.rank());
  const std::size_t expected = checked_data_bytes(shape, dtype, source);
  const std::size_t found = bytes.size() - header;
  if (found != expected) {
    fail_at(source, header + std::min(found, expected),
            found < expected ? "the file ends early" : "the file continues after its last element",
            "; expected ", expected, " bytes of elements for shape ", shape, " of ", dtype,
            ", got ", found);
  }
  MutableTensor tensor(shape, dtype, Device{});
  if (expected > 0) {
    std::memcpy(tensor.data(), bytes.data() + header, expected);
    internal::reverse_each(tensor.data(), expected, size_of(dtype));
  }
  return tensor.freeze();
}

Tensor read_idx(const std::string& path, const InputLimits& limits) {
  return internal::name_when_out_of_memory(path, [&] {
    return parse_idx(internal::read_plain_or_gzip("read_idx", path, limits), path);
  });
}

// MNIST and similar data sets: four IDX files in a folder.

namespace {

constexpr const char* kSystemFolder = "/usr/share/datasets/fashion-mnist";

std::vector<std::string> folders_to_search(const std::string& directory) {
  if (!directory.empty()) return {directory};
  const char* from_environment = std::getenv("TUTTI_DATA_DIR");
  if (!from_environment || !*from_environment) return {kSystemFolder};
  return {from_environment, kSystemFolder};
}

}  // namespace

std::string find_mnist_file(const std::string& directory, const std::string& name) {
  const std::vector<std::string> folders = folders_to_search(directory);
  for (const std::string& folder : folders) {
    for (const char* ending : {"", ".gz"}) {
      const auto path = std::filesystem::path(folder) / (name + ending);
      if (std::filesystem::exists(path)) return path.string();
    }
  }
  fail(ErrorCode::kNotFound, "read_mnist: failed to find file: ", name,
       "; expected it, plain or as .gz, in '", join(folders, "' or '"),
       "'; run apt-get install dataset-fashion-mnist, or set TUTTI_DATA_DIR to the folder that "
       "contains the file");
}

namespace {

void require_images_and_labels(const Tensor& images, const Tensor& labels,
                               const std::string& images_path, const std::string& labels_path) {
  if (images.dtype() != DType::kUInt8 || images.rank() != 3) {
    fail_at(images_path, 0, "expected uint8 images of rank 3, got ", images.dtype(), " of shape ",
            images.shape());
  }
  if (labels.dtype() != DType::kUInt8 || labels.rank() != 1) {
    fail_at(labels_path, 0, "expected uint8 labels of rank 1, got ", labels.dtype(), " of shape ",
            labels.shape());
  }
  if (labels.shape()[0] != images.shape()[0]) {
    fail(ErrorCode::kDataLoss, labels_path, ": offset 4: expected ", images.shape()[0],
         " labels for the images of ", images_path, ", got ", labels.shape()[0]);
  }
}

}  // namespace

ImageData read_mnist(const std::string& directory, Split split) {
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  const std::string images_path = find_mnist_file(directory, prefix + "-images-idx3-ubyte");
  const std::string labels_path = find_mnist_file(directory, prefix + "-labels-idx1-ubyte");
  const Tensor images = read_idx(images_path);
  const Tensor labels = read_idx(labels_path);
  require_images_and_labels(images, labels, images_path, labels_path);
  const Shape& shape = images.shape();
  return {images.detached_reshape({shape[0], shape[1], shape[2], 1}), labels};
}

Dataset load_mnist(const std::string& directory, Split split) {
  return image_dataset(read_mnist(directory, split));
}

// Datasets of images.

namespace {

Tensor scaled_to_one(const Tensor& images) {
  MutableTensor scaled(images.shape(), DType::kFloat32, images.device());
  const auto from = images.host_span<std::uint8_t>();
  const auto to = scaled.span<float>();
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<float>(from[i]) / 255.0f;
  return scaled.freeze();
}

}  // namespace

Dataset image_dataset(const ImageData& data) {
  const NoDeviceScope they_are_on_the_host;
  return Dataset::from_tensor_slices(
      {scaled_to_one(data.images), cast(data.labels, DType::kInt64)});
}

}  // namespace tutti
