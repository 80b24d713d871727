// How the learning rate follows the global batch when replicas are added.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "tutti/optimizer/learning_rate_schedule.h"

namespace tutti {

/// kLinear: rate * k for a batch k times as large (Goyal et al., "Accurate, large minibatch SGD",
/// 2017); kSquareRoot: rate * sqrt(k) (for adaptive methods).
enum class LearningRateScaling { kLinear, kSquareRoot };

/// The rate for `global_batch` when `base_rate` is right for `base_batch`. Both batches > 0.
double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch,
                            LearningRateScaling scaling = LearningRateScaling::kLinear);

struct WarmUpOptions {
  double initial_rate = 0.0;
  double target_rate = 0.1;
  /// Updates until the target is reached.
  std::int64_t warm_up_steps = 0;
};

/// initial + (target - initial) * iteration / steps, then the target: against the unstable start of
/// large batches.
class WarmUp final : public LearningRateSchedule {
 public:
  /// Throws kInvalidArgument for a negative number of steps.
  explicit WarmUp(WarmUpOptions options);
  double operator()(std::int64_t iteration) const override;

 private:
  WarmUpOptions options_;
};

/// The rate that a table gives for a global batch: tf's guide has {{5, 0.1}, {10, 0.15}}. Throws
/// kNotFound listing the batches of the table.
double learning_rate_for_batch(const std::map<std::int64_t, double>& rates_by_global_batch,
                               std::int64_t global_batch);

}  // namespace tutti
