// The binary version of CIFAR-10.
// SPDX-License-Identifier: Apache-2.0
#include "data/image_sets.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "core/file_kind.h"
#include "data/input_file.h"
#include "data/tar_reader.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

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

/// The folder among the two that has one of the files; empty: none.
fs::path find_folder(const fs::path& directory, const std::vector<std::string>& files) {
  for (const fs::path& folder : {directory, directory / kFolder}) {
    const auto has = [&](const std::string& file) { return fs::exists(folder / file); };
    if (std::ranges::any_of(files, has)) return folder;
  }
  return {};
}

/// The archive itself, or that in the folder; empty: none.
fs::path find_archive(const fs::path& directory) {
  if (fs::is_regular_file(directory)) return directory;
  return fs::is_regular_file(directory / kArchive) ? directory / kArchive : fs::path();
}

[[noreturn]] void fail_not_found(const std::string& file, const fs::path& directory) {
  fail(ErrorCode::kNotFound, "read_cifar10: failed to find file: ", file, "; expected it in '",
       directory.string(), "' or '", (directory / kFolder).string(), "', or ", kArchive,
       " in the former; try to get ", kArchive, " from the CIFAR-10 home page and put it there");
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
           archive.string(), "', which holds none of that name; is it the binary version?");
    }
    parts.push_back(found.at(file));
  }
  return parts;
}

}  // namespace

ImageData parse_cifar10(std::string_view bytes, const std::string& source) {
  const std::size_t rows = bytes.size() / kRecordBytes;
  if (rows == 0 || bytes.size() % kRecordBytes != 0) {
    fail(ErrorCode::kDataLoss, source, ": offset ", rows * kRecordBytes,
         ": the file ends within a record; expected records of ", kRecordBytes, " bytes, got ",
         bytes.size() - rows * kRecordBytes, " bytes after ", rows, " records",
         internal::kind_note(bytes));
  }
  constexpr auto kLength = static_cast<std::int64_t>(kSide);
  const auto count = static_cast<std::int64_t>(rows);
  const MutableTensor images({count, kLength, kLength, kChannels}, DType::kUInt8, Device{});
  const MutableTensor labels({count}, DType::kUInt8, Device{});
  for (std::size_t row = 0; row < rows; ++row) {
    const auto* record = reinterpret_cast<const unsigned char*>(bytes.data()) + row * kRecordBytes;
    if (record[0] >= kNumClasses) {
      fail(ErrorCode::kDataLoss, source, ": offset ", row * kRecordBytes,
           ": no CIFAR-10 record; expected a label below ", int{kNumClasses}, ", got ",
           int{record[0]}, internal::kind_note(bytes));
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

}  // namespace tutti
