// Augmentation: random functions of elements, and the rows of batches mixed with each other.
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

// Augmentation: a random function of every element, keyed by the element's number in the pass.

/// The random numbers of one element of one pass: a function of (seed, epoch, number of the element
/// in the pass) alone. Where workers share a pass by files or by shard(), no two of their elements
/// have one number. A value.
class SampleRandom {
 public:
  /// Key of the element; c is the number of the stream.
  explicit SampleRandom(const RandomKey& key) : key_(key) {}

  /// Stream number `index` of this element. Different numbers give independent streams.
  RandomStream stream(std::uint64_t index) const {
    RandomKey key = key_;
    key.c = index;
    return RandomStream(key);
  }

 private:
  RandomKey key_;
};

struct AugmentOptions {
  /// Two augmentations of one dataset need two seeds.
  std::uint64_t seed = 0;
  /// Elements worked on at once, in order all the same; 1: on the caller's thread.
  int num_parallel_calls = 1;
};

/// fn must be a function of its two arguments alone and, with several calls at once, safe on
/// several threads.
using AugmentFunction = std::function<Element(const Element&, const SampleRandom&)>;

/// Dataset::map() with random numbers. Every epoch (fit, repeat()) has others; the number of
/// replicas, parallel calls, prefetching, a stop and a resume change no bit, nor does shard(), in
/// front of it or behind. Put it behind cache() (which would keep one epoch's). Throws as map()
/// does.
Dataset augment(const Dataset& dataset, AugmentFunction fn, AugmentOptions options = {});

struct AugmentImagesOptions {
  std::uint64_t seed = 0;
  int num_parallel_calls = 1;
  /// Name of the component that is the image; empty: the first one.
  std::string component = {};
};

/// augment() by `steps` one after the other, each with a stream of its own: pictures [height,
/// width, channels], before batch().
///
///     augment_images(data, {image::random_crop(32, {.padding = 4}),
///                           image::random_flip_left_right()}, {.seed = 7}).batch(128)
///
/// Throws kInvalidArgument for no steps and, from next(), naming the step, for elements that it
/// cannot take; kNotFound for a component that is not there.
Dataset augment_images(const Dataset& dataset, std::vector<image::ImageStep> steps,
                       AugmentImagesOptions options = {});

namespace internal {
/// augment() by a function that gives as many rows as it gets: the batch size stays known.
Dataset augment_batches(const Dataset& dataset, AugmentFunction fn, AugmentOptions options);

/// A number in [0, 1] from Beta(a, b), a and b > 0; a function of the stream, which it takes for
/// itself. X / (X + Y) with X and Y from gamma distributions (Marsaglia, Tsang: "A simple method
/// for generating gamma variables", 2000).
double sample_beta(const RandomStream& random, double a, double b);
}  // namespace internal

// Mixup and cutmix: every row of a batch mixed with another one, labels as well.

struct MixupOptions {
  /// The weight of a row's own values is drawn from Beta(alpha, alpha); small: mostly one of both.
  double alpha = 0.2;
  std::uint64_t seed = 0;
  int num_parallel_calls = 1;
};

/// Row r of every batch becomes w_r * row r + (1 - w_r) * row p(r), with a permutation p for each
/// batch and a weight for each row, in all components alike: features, one-hot or soft labels,
/// sample weights (Zhang, Cisse, Dauphin, Lopez-Paz: "mixup: beyond empirical risk minimization",
/// 2018). Random numbers are keyed by (seed, epoch, number of the batch, row), as in augment.h: put
/// it behind batch(), which cuts the global batch. Throws kInvalidArgument for alpha <= 0 and, from
/// next(), naming the component, for types that are not floating; kFailedPrecondition for
/// elements without rows.
Dataset mixup(const Dataset& batches, MixupOptions options = {});

struct CutmixOptions {
  /// The share of a picture's own pixels is drawn from Beta(alpha, alpha).
  double alpha = 1.0;
  std::uint64_t seed = 0;
  int num_parallel_calls = 1;
};

/// A rectangle of every picture is that of another picture of the batch; all other components are
/// mixed as in mixup(), by the share of pixels (Yun et al.: "CutMix", 2019). The first component is
/// the pictures, [rows, height, width, channels], of any type. Keys and errors as in mixup().
Dataset cutmix(const Dataset& batches, CutmixOptions options = {});

}  // namespace tutti
