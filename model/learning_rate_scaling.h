// How the learning rate follows the global batch when replicas are added.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

namespace tutti {

/// kLinear: rate * k for a batch k times as large (Goyal et al., "Accurate, large minibatch SGD",
/// 2017); kSquareRoot: rate * sqrt(k) (for adaptive methods).
enum class LearningRateScaling { kLinear, kSquareRoot };

/// The rate for `global_batch` when `base_rate` is right for `base_batch`. Both batches > 0.
double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch,
                            LearningRateScaling scaling = LearningRateScaling::kLinear);

/// The rate that a table gives for a global batch: tf's guide has {{5, 0.1}, {10, 0.15}}. Throws
/// kNotFound listing the batches of the table.
double learning_rate_for_batch(const std::map<std::int64_t, double>& rates_by_global_batch,
                               std::int64_t global_batch);

}  // namespace tutti
