// The input of the CIFAR-10 tutorial: where its files are, and how pictures become batches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tutti/data/readers.h"

namespace tutti::examples::cifar10 {

/// Pictures are cut to this size, from 32 x 32.
inline constexpr std::int64_t kImageSize = 24;
inline constexpr std::int64_t kNumClasses = 10;
inline constexpr std::int64_t kNumExamplesForTraining = 50'000;
inline constexpr std::int64_t kNumExamplesForEvaluation = 10'000;

struct DistortedInputOptions {
  /// Over all towers.
  std::int64_t batch_size = 128;
  std::uint64_t seed = 0;
  /// Pictures distorted at once, in order all the same.
  int num_threads = 1;
};

/// Batches to train on, without end: {images float32 [batch, 24, 24, 3], labels int64 [batch]},
/// shuffled within `queue_size()` pictures, each with distortions of its own in every epoch, in
/// this order: random crop, random flip, brightness by a delta in [-63, 63), contrast by a factor
/// in [0.2, 1.8), standardised. A function of data and options alone.
Dataset distorted_inputs(const ImageData& data, const DistortedInputOptions& options);

/// Batches to evaluate on, each picture once: the middle of each, standardised.
Dataset evaluation_inputs(const ImageData& data, std::int64_t batch_size);

/// Pictures from which the next one is drawn: 0.4 of an epoch, and three batches.
std::int64_t queue_size(std::int64_t batch_size);

/// Threads that distort pictures: half of this machine's, at most the tutorial's 16.
int num_preprocessing_threads();

/// read_cifar10(), whose kNotFound then also speaks of --synthetic.
ImageData read_images(const std::string& data_dir, Split split);

}  // namespace tutti::examples::cifar10
