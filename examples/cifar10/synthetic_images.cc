// Creates synthetic images in CIFAR-10's file format.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/synthetic_images.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <vector>

#include "examples/cifar10/cifar10_input.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::examples::cifar10 {
namespace {

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kPixels = kSide * kSide;
constexpr std::int64_t kRecordBytes = 1 + 3 * kPixels;
constexpr double kMiddle = 128.0;
constexpr double kAmplitude = 60.0;
constexpr double kNoise = 24.0;  // maximum deviation
constexpr std::uint64_t kSeed = 10;
constexpr std::uint64_t kTestFile = 0;

/// Amplitude of the wave in each colour channel, for the class modulo 5.
constexpr std::array<std::array<double, 3>, 5> kColours = {
    {{1.0, 0.2, -0.6}, {-0.6, 1.0, 0.2}, {0.2, -0.6, 1.0}, {1.0, 1.0, -0.4}, {-0.4, 0.6, 0.6}}};

struct File {
  std::string name;
  std::uint64_t number;
  std::int64_t count;
};

std::vector<File> files_of(const SyntheticOptions& options) {
  std::vector<File> files = {{"test_batch.bin", kTestFile, options.per_test_file}};
  for (std::uint64_t i = 1; i <= 5; ++i) {
    files.push_back({concat("data_batch_", i, ".bin"), i, options.per_training_file});
  }
  return files;
}

/// Writes a file atomically. The temporary name contains the process id, so that programs can write
/// the same file concurrently. Throws kUnavailable if the file cannot be written.
void write_whole(const std::filesystem::path& path, const std::string& bytes) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const std::string temporary = concat(path.string(), ".", ::getpid());
  std::ofstream stream(temporary, std::ios::binary);
  stream << bytes;
  stream.close();
  if (stream) std::filesystem::rename(temporary, path, error);
  if (!stream || error) {
    std::filesystem::remove(temporary, error);
    fail(ErrorCode::kUnavailable, "make_synthetic_images: cannot write '", path.string(),
         "'; check that its folder is writable and its disk is not full");
  }
}

}  // namespace

std::string synthetic_record(std::uint64_t file, std::uint64_t number) {
  const auto label = static_cast<std::size_t>(number % kNumClasses);
  const RandomStream noise(RandomKey{kSeed, kUserPurpose, file, number, 0});
  const RandomStream own(RandomKey{kSeed, kUserPurpose, file, number, 1});
  const double phase = own.uniform64(0) * 2.0 * std::numbers::pi;
  const double waves = 2.0 + static_cast<double>(label % 5);
  const bool upright = label >= 5;
  std::vector<float> random(static_cast<std::size_t>(kRecordBytes - 1));
  noise.fill_uniform(0, random);

  std::string record(1, static_cast<char>(label));
  record.reserve(static_cast<std::size_t>(kRecordBytes));
  for (std::size_t colour = 0; colour < 3; ++colour) {
    for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
      const std::int64_t place = upright ? pixel % kSide : pixel / kSide;
      const double angle =
          2.0 * std::numbers::pi * waves * static_cast<double>(place) / kSide + phase;
      const double value = kMiddle + kColours[label % 5][colour] * kAmplitude * std::sin(angle) +
                           kNoise * (2.0 * double{random[record.size() - 1]} - 1.0);
      record.push_back(static_cast<char>(std::clamp(std::lround(value), 0L, 255L)));
    }
  }
  return record;
}

std::string make_synthetic_images(const std::string& data_dir, const SyntheticOptions& options) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(data_dir) / "synthetic";
  for (const File& file : files_of(options)) {
    const fs::path path = folder / file.name;
    std::error_code missing;
    if (fs::file_size(path, missing) == static_cast<std::uintmax_t>(file.count * kRecordBytes) &&
        !missing) {
      continue;
    }
    std::string bytes;
    for (std::int64_t i = 0; i < file.count; ++i) {
      bytes += synthetic_record(file.number, static_cast<std::uint64_t>(i));
    }
    write_whole(path, bytes);
  }
  return folder.string();
}

}  // namespace tutti::examples::cifar10
