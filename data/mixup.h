// Mixup and cutmix: every row of a batch mixed with another one, labels as well.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/data/dataset.h"

namespace tutti {

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
