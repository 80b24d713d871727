// Dynamic loss scaling: the scale, and when it changes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/optimizer/optimizer_options.h"

namespace tutti {

/// Whether every element is finite; a gradient that is none counts as finite.
bool all_finite(const Gradient& gradient);
bool all_finite(std::span<const Gradient> gradients);

namespace internal {

/// The scale of the loss and how many updates in a row had finite gradients, as variables
/// "<optimizer>/dynamic_scale" (float32) and "<optimizer>/step_counter" (int64).
class DynamicLossScale {
 public:
  struct State {
    double scale = 1.0;
    std::int64_t good_steps = 0;
  };

  /// Throws kInvalidArgument for a scale below 1, a multiplier of 1 or less or growth_steps
  /// below 1.
  DynamicLossScale(const std::string& optimizer, const DynamicLossScaleOptions& options);

  State read() const;
  /// After a step that began with `state`. Every replica, with the same arguments; while none
  /// reads.
  void update(const State& state, bool finite);
  std::vector<Variable> variables() const { return {scale_, good_steps_}; }

 private:
  State next(const State& state, bool finite) const;

  DynamicLossScaleOptions options_;
  Variable scale_;
  Variable good_steps_;
};

}  // namespace internal
}  // namespace tutti
