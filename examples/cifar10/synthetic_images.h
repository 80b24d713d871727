// Made-up pictures in CIFAR-10's file format, for machines without the real ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace tutti::examples::cifar10 {

struct SyntheticOptions {
  /// Pictures in each of data_batch_1.bin .. data_batch_5.bin, and in test_batch.bin.
  std::int64_t per_training_file = 2'000;
  std::int64_t per_test_file = 10'000;
};

/// One record: the label, then planes of red, green and blue. The label is number % 10; a picture
/// shows waves whose direction, number and colour tell the class (the same when it is mirrored),
/// with a phase of its own under noise. A function of its arguments alone.
std::string synthetic_record(std::uint64_t file, std::uint64_t number);

/// Sees to it that `data_dir`/synthetic holds the six files and gives that folder's path. Files
/// that are there with the right length are kept: they are written once. Throws kUnavailable naming
/// what cannot be written.
std::string make_synthetic_images(const std::string& data_dir,
                                  const SyntheticOptions& options = {});

}  // namespace tutti::examples::cifar10
