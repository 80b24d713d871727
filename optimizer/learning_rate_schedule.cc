// Learning rates that depend on the number of updates.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/learning_rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tutti/core/error.h"

namespace tutti {

ExponentialDecay::ExponentialDecay(ExponentialDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1 || !(options_.decay_rate > 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "ExponentialDecay: expected decay_steps of 1 or more and a positive decay_rate, got ",
         options_.decay_steps, " and ", options_.decay_rate);
  }
}

double ExponentialDecay::operator()(std::int64_t iteration) const {
  double exponent = static_cast<double>(iteration) / static_cast<double>(options_.decay_steps);
  if (options_.staircase) exponent = std::floor(exponent);
  return options_.initial_learning_rate * std::pow(options_.decay_rate, exponent);
}

PiecewiseConstantDecay::PiecewiseConstantDecay(std::vector<std::int64_t> boundaries,
                                               std::vector<double> values)
    : boundaries_(std::move(boundaries)), values_(std::move(values)) {
  const bool ascending =
      std::ranges::adjacent_find(boundaries_, std::greater_equal<>{}) == boundaries_.end();
  if (values_.size() != boundaries_.size() + 1 || !ascending) {
    fail(
        ErrorCode::kInvalidArgument,
        "PiecewiseConstantDecay: expected ascending boundaries and one value more than boundaries, "
        "got boundaries [",
        join(boundaries_), "] and ", values_.size(), " values");
  }
}

double PiecewiseConstantDecay::operator()(std::int64_t iteration) const {
  const auto place = std::ranges::lower_bound(boundaries_, iteration);
  return values_[static_cast<std::size_t>(place - boundaries_.begin())];
}

}  // namespace tutti
