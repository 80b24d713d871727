// Synthetic images in CIFAR-10's file format, for machines without the real images.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace tutti::examples::cifar10 {

struct SyntheticOptions {
  /// Number of images in each of data_batch_1.bin .. data_batch_5.bin, and in test_batch.bin.
  std::int64_t per_training_file = 2'000;
  std::int64_t per_test_file = 10'000;
};

/// Returns one record: the label, then planes of red, green and blue. The label is number % 10. The
/// class can be recognised by the direction, number and colour of the waves in the image, even if
/// the image is mirrored; phase and noise vary. The result depends only on the arguments.
std::string synthetic_record(std::uint64_t file, std::uint64_t number);

/// Writes the six files to `data_dir`/synthetic, and returns the path of that folder. Keeps
/// existing files that have the right length. Throws kUnavailable, naming the file, if a file
/// cannot be written.
std::string make_synthetic_images(const std::string& data_dir,
                                  const SyntheticOptions& options = {});

}  // namespace tutti::examples::cifar10
