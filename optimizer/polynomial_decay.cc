// Learning rates that fall as a power of what is left, and as the inverse of time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/polynomial_decay.h"

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"

namespace tutti {

PolynomialDecay::PolynomialDecay(PolynomialDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1) {
    fail(ErrorCode::kInvalidArgument, "PolynomialDecay: expected decay_steps of 1 or more, got ",
         options_.decay_steps);
  }
}

double PolynomialDecay::operator()(std::int64_t iteration) const {
  double step = static_cast<double>(iteration);
  double steps = static_cast<double>(options_.decay_steps);
  if (options_.cycle) {
    steps *= std::max(std::ceil(step / steps), 1.0);
  } else {
    step = std::min(step, steps);
  }
  const double first = options_.initial_learning_rate, last = options_.end_learning_rate;
  return (first - last) * std::pow(1.0 - step / steps, options_.power) + last;
}

InverseTimeDecay::InverseTimeDecay(InverseTimeDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1 || !(options_.decay_rate >= 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "InverseTimeDecay: expected decay_steps of 1 or more and a decay_rate of 0 or more, got ",
         options_.decay_steps, " and ", options_.decay_rate);
  }
}

double InverseTimeDecay::operator()(std::int64_t iteration) const {
  double periods = static_cast<double>(iteration) / static_cast<double>(options_.decay_steps);
  if (options_.staircase) periods = std::floor(periods);
  return options_.initial_learning_rate / (1.0 + options_.decay_rate * periods);
}

}  // namespace tutti
