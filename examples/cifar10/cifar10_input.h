// Input of the CIFAR-10 tutorial: reads its files and turns images into batches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tutti/data/readers.h"

namespace tutti::examples::cifar10 {

/// Height and width to which the 32 x 32 images are cropped.
inline constexpr std::int64_t kImageSize = 24;
inline constexpr std::int64_t kNumClasses = 10;
inline constexpr std::int64_t kNumExamplesForTraining = 50'000;
inline constexpr std::int64_t kNumExamplesForEvaluation = 10'000;

struct DistortedInputOptions {
  /// Number of examples per step, across all towers.
  std::int64_t batch_size = 128;
  std::uint64_t seed = 0;
  /// Number of images that are distorted in parallel; does not affect the order of images.
  int num_threads = 1;
};

/// Returns an endless dataset of training batches: {images float32 [batch, 24, 24, 3], labels int64
/// [batch]}, shuffled within `queue_size()` images. In each epoch, each image gets new distortions
/// in this order: random crop, random flip, brightness changed by a delta in [-63, 63), contrast
/// changed by a factor in [0.2, 1.8), standardization. The result depends only on the data and the
/// options.
Dataset distorted_inputs(const ImageData& data, const DistortedInputOptions& options);

/// Returns evaluation batches. Each image occurs once, cropped to its centre and standardized.
Dataset evaluation_inputs(const ImageData& data, std::int64_t batch_size);

/// Returns the size of the shuffle buffer: 0.4 of an epoch plus three batches.
std::int64_t queue_size(std::int64_t batch_size);

/// Returns the number of threads that distort images: half the cores of the machine, at most 16.
int num_preprocessing_threads();

/// Same as read_cifar10(), but its kNotFound error also suggests --synthetic.
ImageData read_images(const std::string& data_dir, Split split);

}  // namespace tutti::examples::cifar10
