// The binary version of CIFAR-10.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/cifar10.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "tutti/data/gzip_file.h"

namespace tutti {
namespace {

constexpr std::size_t kSide = 32;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kPlaneBytes = kSide * kSide;
constexpr std::size_t kImageBytes = kPlaneBytes * kChannels;
constexpr std::size_t kRecordBytes = 1 + kImageBytes;
constexpr unsigned char kNumClasses = 10;

ImageData make_data(MutableTensor images, MutableTensor labels) {
  return {images.freeze(), labels.freeze()};
}

std::pair<MutableTensor, MutableTensor> allocate(std::int64_t rows) {
  constexpr auto kSize = static_cast<std::int64_t>(kSide);
  return {MutableTensor({rows, kSize, kSize, kChannels}, DType::kUInt8, Device{}),
          MutableTensor({rows}, DType::kUInt8, Device{})};
}

void interleave_planes(const unsigned char* planes, std::uint8_t* image) {
  for (std::size_t pixel = 0; pixel < kPlaneBytes; ++pixel) {
    for (std::size_t channel = 0; channel < kChannels; ++channel) {
      image[pixel * kChannels + channel] = planes[channel * kPlaneBytes + pixel];
    }
  }
}

ImageData concatenate(const std::vector<ImageData>& parts) {
  std::int64_t rows = 0;
  for (const ImageData& part : parts) rows += part.labels.num_elements();
  auto [images, labels] = allocate(rows);
  std::byte* next_image = images.data();
  std::byte* next_label = labels.data();
  for (const ImageData& part : parts) {
    std::memcpy(next_image, part.images.bytes().data(), part.images.num_bytes());
    std::memcpy(next_label, part.labels.bytes().data(), part.labels.num_bytes());
    next_image += part.images.num_bytes();
    next_label += part.labels.num_bytes();
  }
  return make_data(std::move(images), std::move(labels));
}

std::string find_folder(const std::string& directory, const std::string& file) {
  namespace fs = std::filesystem;
  const std::string inner = (fs::path(directory) / "cifar-10-batches-bin").string();
  for (const std::string& folder : {directory, inner}) {
    if (fs::exists(fs::path(folder) / file)) return folder;
  }
  fail(ErrorCode::kNotFound, "read_cifar10: failed to find file: ", file, "; expected it in '",
       directory, "' or '", inner,
       "'; try to unpack cifar-10-binary.tar.gz (from the CIFAR-10 home page) there");
}

}  // namespace

ImageData parse_cifar10(std::string_view bytes, const std::string& source) {
  const std::size_t rows = bytes.size() / kRecordBytes;
  if (rows == 0 || bytes.size() % kRecordBytes != 0) {
    fail(ErrorCode::kDataLoss, source, ": offset ", rows * kRecordBytes,
         ": the file ends within a record; expected records of ", kRecordBytes, " bytes, got ",
         bytes.size() - rows * kRecordBytes, " bytes after ", rows, " records");
  }
  auto [images, labels] = allocate(static_cast<std::int64_t>(rows));
  for (std::size_t row = 0; row < rows; ++row) {
    const auto* record = reinterpret_cast<const unsigned char*>(bytes.data()) + row * kRecordBytes;
    if (record[0] >= kNumClasses) {
      fail(ErrorCode::kDataLoss, source, ": offset ", row * kRecordBytes,
           ": no CIFAR-10 record; expected a label below ", int{kNumClasses}, ", got ",
           int{record[0]});
    }
    labels.span<std::uint8_t>()[row] = record[0];
    interleave_planes(record + 1, images.span<std::uint8_t>().data() + row * kImageBytes);
  }
  return make_data(std::move(images), std::move(labels));
}

ImageData read_cifar10_file(const std::string& path) {
  return parse_cifar10(internal::read_plain_or_gzip(path), path);
}

ImageData read_cifar10(const std::string& directory, Split split) {
  std::vector<std::string> files = {"test_batch.bin"};
  if (split == Split::kTrain) {
    files.clear();
    for (int i = 1; i <= 5; ++i) files.push_back(concat("data_batch_", i, ".bin"));
  }
  std::vector<ImageData> parts;
  for (const std::string& file : files) {
    const std::filesystem::path folder = find_folder(directory, file);
    parts.push_back(read_cifar10_file((folder / file).string()));
  }
  return concatenate(parts);
}

}  // namespace tutti
