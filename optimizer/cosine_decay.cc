// Cosine learning rates, with warm-up and with restarts.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/cosine_decay.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/core/error.h"

namespace tutti {
namespace {

/// From 1 to 0 while `share` goes from 0 to 1.
double half_cosine(double share) { return 0.5 * (1.0 + std::cos(std::numbers::pi * share)); }

}  // namespace

CosineDecay::CosineDecay(CosineDecayOptions options) : options_(options) {
  if (options_.decay_steps < 1 || options_.warmup_steps < 0) {
    fail(ErrorCode::kInvalidArgument,
         "CosineDecay: expected decay_steps of 1 or more and warmup_steps of 0 or more, got ",
         options_.decay_steps, " and ", options_.warmup_steps);
  }
  if (!options_.warmup_target && options_.warmup_steps > 0) {
    fail(ErrorCode::kInvalidArgument, "CosineDecay: ", options_.warmup_steps,
         " warmup_steps without a target; try .warmup_target");
  }
}

double CosineDecay::operator()(std::int64_t iteration) const {
  const std::int64_t warmup_steps = options_.warmup_target ? options_.warmup_steps : 0;
  const double first = options_.initial_learning_rate;
  const double top = options_.warmup_target.value_or(first);
  if (iteration < warmup_steps) {
    return (top - first) * (static_cast<double>(iteration) / static_cast<double>(warmup_steps)) +
           first;
  }
  const std::int64_t step = std::min(iteration - warmup_steps, options_.decay_steps);
  const double share = static_cast<double>(step) / static_cast<double>(options_.decay_steps);
  return top * ((1.0 - options_.alpha) * half_cosine(share) + options_.alpha);
}

CosineDecayRestarts::CosineDecayRestarts(CosineDecayRestartsOptions options) : options_(options) {
  if (options_.first_decay_steps < 1 || !(options_.t_mul >= 1.0) || !(options_.m_mul > 0.0)) {
    fail(ErrorCode::kInvalidArgument,
         "CosineDecayRestarts: expected first_decay_steps of 1 or more, t_mul of 1 or more and a "
         "positive m_mul, got ",
         options_.first_decay_steps, ", ", options_.t_mul, " and ", options_.m_mul);
  }
}

double CosineDecayRestarts::operator()(std::int64_t iteration) const {
  // Walked, not computed with logarithms, which miss the first step of a period by rounding.
  double length = static_cast<double>(options_.first_decay_steps);
  double rest = static_cast<double>(iteration), factor = 1.0;
  if (options_.t_mul == 1.0) {
    const double period = std::floor(rest / length);
    factor = std::pow(options_.m_mul, period);
    rest -= period * length;
  }
  while (rest >= length) {
    rest -= length;
    length *= options_.t_mul;
    factor *= options_.m_mul;
  }
  return options_.initial_learning_rate *
         ((1.0 - options_.alpha) * factor * half_cosine(rest / length) + options_.alpha);
}

}  // namespace tutti
