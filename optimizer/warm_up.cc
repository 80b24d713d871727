// Learning rates that begin low: a linear warm-up for any schedule, and warm-up, stable, decay.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/warm_up.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/core/error.h"

namespace tutti {
namespace {

double share_of(std::int64_t iteration, std::int64_t steps) {
  return static_cast<double>(iteration) / static_cast<double>(steps);
}

/// From 1 to 0 while x goes from 0 to 1.
double fall(DecayShape shape, double x) {
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - x;
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
    case DecayShape::kOneMinusSquareRoot:
      return 1.0 - std::sqrt(x);
  }
  fail(ErrorCode::kInvalidArgument, "DecayShape: no such value: ", static_cast<int>(shape));
}

}  // namespace

LinearWarmUp::LinearWarmUp(LinearWarmUpOptions options) : options_(std::move(options)) {
  if (options_.warm_up_steps < 0) {
    fail(ErrorCode::kInvalidArgument, "LinearWarmUp: expected 0 warm_up_steps or more, got ",
         options_.warm_up_steps);
  }
}

double LinearWarmUp::operator()(std::int64_t iteration) const {
  const std::int64_t steps = options_.warm_up_steps;
  if (iteration >= steps) return options_.then.at(iteration - steps);
  const double first = options_.initial_learning_rate;
  return first + (options_.then.at(0) - first) * share_of(iteration, steps);
}

WarmUpStableDecay::WarmUpStableDecay(WarmUpStableDecayOptions options) : options_(options) {
  if (std::min({options.warm_up_steps, options.stable_steps, options.decay_steps}) < 0) {
    fail(ErrorCode::kInvalidArgument,
         "WarmUpStableDecay: expected warm_up_steps, stable_steps and decay_steps of 0 or more, "
         "got ",
         options.warm_up_steps, ", ", options.stable_steps, " and ", options.decay_steps);
  }
}

double WarmUpStableDecay::operator()(std::int64_t iteration) const {
  const double first = options_.initial_learning_rate, top = options_.learning_rate;
  if (iteration < options_.warm_up_steps) {
    return first + (top - first) * share_of(iteration, options_.warm_up_steps);
  }
  const std::int64_t step = iteration - options_.warm_up_steps - options_.stable_steps;
  if (step < 0) return top;
  const double last = options_.final_learning_rate;
  if (step >= options_.decay_steps) return last;
  return last + (top - last) * fall(options_.shape, share_of(step, options_.decay_steps));
}

}  // namespace tutti
