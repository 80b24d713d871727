// How the learning rate follows the global batch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/learning_rate_scaling.h"

#include <cmath>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch,
                            LearningRateScaling scaling) {
  if (base_batch <= 0 || global_batch <= 0) {
    fail(ErrorCode::kInvalidArgument, "scaled_learning_rate: expected positive batches, got ",
         base_batch, " and ", global_batch);
  }
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(base_batch);
  return base_rate * (scaling == LearningRateScaling::kLinear ? ratio : std::sqrt(ratio));
}

double learning_rate_for_batch(const std::map<std::int64_t, double>& rates_by_global_batch,
                               std::int64_t global_batch) {
  const auto found = rates_by_global_batch.find(global_batch);
  if (found != rates_by_global_batch.end()) return found->second;
  std::string batches;
  for (const auto& [batch, rate] : rates_by_global_batch)
    batches += concat(batches.empty() ? "" : ", ", batch);
  fail(ErrorCode::kNotFound, "learning_rate_for_batch: no rate for a global batch of ",
       global_batch, "; expected one of ", batches, "; try scaled_learning_rate()");
}

}  // namespace tutti
