// Augmentation: functions that transform elements at random, and functions that mix the rows of a
// batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/data/dataset.h"
#include "tutti/data/image_ops.h"

namespace tutti {

// Augmentation applies a random function to every element, keyed by the element's number in the
// pass.

/// Random numbers for one element in one pass. They depend only on (seed, epoch, number of the
/// element in the pass). Element numbers are unique across workers that share a pass by files or by
/// shard(). A value type.
class SampleRandom {
 public:
  /// `key` identifies the element. In the key of a stream, the stream's number replaces `c`.
  explicit SampleRandom(const RandomKey& key) : key_(key) {}

  /// Returns this element's stream number `index`. Streams with different numbers are independent.
  RandomStream stream(std::uint64_t index) const {
    RandomKey key = key_;
    key.c = index;
    return RandomStream(key);
  }

 private:
  RandomKey key_;
};

struct AugmentOptions {
  /// Seed; must differ between two augmentations of the same dataset.
  std::uint64_t seed = 0;
  /// Number of elements processed concurrently; they are yielded in order. 1: the caller's thread
  /// processes them.
  int num_parallel_calls = 1;
};

/// Random function of an element. It must depend only on its two arguments, and must be thread-safe
/// if num_parallel_calls > 1.
using AugmentFunction = std::function<Element(const Element&, const SampleRandom&)>;

/// Same as Dataset::map(), but `fn` also receives random numbers, which differ in every epoch (fit,
/// repeat()). The results are bit-identical for any number of replicas or parallel calls, with or
/// without prefetching, after the pass is stopped and resumed, and with shard() before or after
/// augment(). Call augment() after cache(), because a later cache would keep the results of one
/// epoch. Throws as map() does.
Dataset augment(const Dataset& dataset, AugmentFunction fn, AugmentOptions options = {});

struct AugmentImagesOptions {
  std::uint64_t seed = 0;
  int num_parallel_calls = 1;
  /// Name of the component that holds the image; empty: the first one.
  std::string component = {};
};

/// Same as augment(), but applies `steps` in order, each with its own random stream. Elements are
/// images [height, width, channels], so call augment_images() before batch().
///
///     augment_images(data, {image::random_crop(32, {.padding = 4}),
///                           image::random_flip_left_right()}, {.seed = 7}).batch(128)
///
/// Throws kInvalidArgument if `steps` is empty. next() throws kInvalidArgument with the step's name
/// for an element that the step does not accept, and kNotFound for an unknown component.
Dataset augment_images(const Dataset& dataset, std::vector<image::ImageStep> steps,
                       AugmentImagesOptions options = {});

namespace internal {
/// Same as augment(), but for an `fn` that keeps the number of rows, so that the batch size stays
/// known.
Dataset augment_batches(const Dataset& dataset, AugmentFunction fn, AugmentOptions options);

/// Returns a number in [0, 1] from Beta(a, b), where a and b are > 0. The number is a function of
/// the stream, which must not be used for anything else. Computed as X / (X + Y) with X and Y from
/// gamma distributions (Marsaglia, Tsang: "A simple method for generating gamma variables", 2000).
double sample_beta(const RandomStream& random, double a, double b);
}  // namespace internal

// Mixup and CutMix: every row of a batch, with its labels, is mixed with another row.

struct MixupOptions {
  /// Parameter of Beta(alpha, alpha), from which the weight of a row's own values is drawn. If
  /// alpha is small, weights are near 0 or 1.
  double alpha = 0.2;
  std::uint64_t seed = 0;
  int num_parallel_calls = 1;
};

/// Replaces row r of every batch by w_r * row r + (1 - w_r) * row p(r), with a permutation p per
/// batch and a weight w_r per row, which are the same for all components: features, one-hot or soft
/// labels, sample weights (Zhang, Cisse, Dauphin, Lopez-Paz: "mixup: beyond empirical risk
/// minimization", 2018). Random numbers are keyed by (seed, epoch, number of the batch, row). Call
/// mixup() after batch(), on the global batch. Throws kInvalidArgument for alpha <= 0. next()
/// throws kInvalidArgument with the component's name for types that are not floating-point, and
/// kFailedPrecondition for elements without rows.
Dataset mixup(const Dataset& batches, MixupOptions options = {});

struct CutmixOptions {
  /// Parameter of Beta(alpha, alpha), from which the share of an image's own pixels is drawn.
  double alpha = 1.0;
  std::uint64_t seed = 0;
  int num_parallel_calls = 1;
};

/// Replaces a rectangle of every image with the same rectangle of another image in the batch; other
/// components are mixed as in mixup(), by the share of pixels (Yun et al.: "CutMix", 2019). The
/// first component holds the images, [rows, height, width, channels], of any type. Keys and errors
/// are as in mixup().
Dataset cutmix(const Dataset& batches, CutmixOptions options = {});

}  // namespace tutti
