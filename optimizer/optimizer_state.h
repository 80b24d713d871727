// State of an optimizer besides its rule, and rules that wrap or follow that rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// Rule that computes w -= w * weight_decay * lr and then applies the wrapped rule. Processes
/// weights in blocks, to read them from memory only once.
class DecoupledWeightDecayRule final : public UpdateRule {
 public:
  /// `rule` must outlive this object and must not use norms.
  explicit DecoupledWeightDecayRule(const UpdateRule& rule) : rule_(rule) {}
  std::string_view name() const override { return rule_.name(); }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;
  bool decays_weights() const override { return true; }

 private:
  const UpdateRule& rule_;
};

/// Rule applied after an update: average = momentum * average + (1 - momentum) * w; in the first
/// iteration, average = w. In every overwrite_frequency-th iteration, w becomes the average.
/// Ignores the gradient. Slot "average".
class MovingAverageRule final : public FormulaRule {
 public:
  /// Throws kInvalidArgument, naming `optimizer`, if the momentum is outside [0, 1] or the
  /// frequency is below 1.
  MovingAverageRule(std::string_view optimizer, const EmaOptions& options);
  std::string_view name() const override { return "ema"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override { return {{"average", 0.0}}; }
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  EmaOptions options_;
};

/// Creates a variable for a number in the optimizer's state. Its value is the same on all replicas:
/// it is written with assign_replicated() while no replica reads it.
inline Variable state_variable(const Tensor& value, std::string name) {
  return Variable(value, {.name = std::move(name),
                          .trainable = false,
                          .aggregation = VariableAggregation::kOnlyFirstReplica,
                          .on_host = true});
}

/// Sums of the gradients that each replica has accumulated, and the number of accumulated steps.
/// The sums are ON_READ variables, so a checkpoint contains each replica's sums.
class GradientAccumulator {
 public:
  /// Throws kInvalidArgument if `steps` is below 1.
  GradientAccumulator(const std::string& optimizer, std::span<const Variable> variables,
                      std::int64_t steps);

  std::int64_t steps() const { return steps_; }
  /// Returns the number of steps accumulated so far, from 0 to steps() - 1; equal on all replicas.
  std::int64_t num_held() const { return num_held_.value().item_int(); }

  /// Adds the gradients of one more step to those of the `num_held` steps already held. Collective;
  /// no replica may read num_held() concurrently.
  void hold(std::span<const Gradient> gradients, std::int64_t num_held);
  /// Returns `gradient` plus the sum held for variable `index`. Returns an empty gradient if
  /// `gradient` is empty and the sum is 0.
  Gradient total(std::size_t index, const Gradient& gradient) const;
  /// Drops all held gradients. Collective; no replica may read num_held() concurrently.
  void clear();

  const Variable& num_held_variable() const { return num_held_; }
  std::span<const Variable> sums() const { return sums_; }

 private:
  std::int64_t steps_;
  Variable num_held_;
  std::vector<Variable> sums_;  // one per variable; stale while no gradients are held
};

}  // namespace tutti::internal

namespace tutti {

/// Returns true if every element is finite; an empty gradient (is_none()) counts as finite.
bool all_finite(const Gradient& gradient);
bool all_finite(std::span<const Gradient> gradients);

namespace internal {

/// Dynamic loss scale and the number of consecutive updates with finite gradients, stored as the
/// variables "<optimizer>/dynamic_scale" (float32) and "<optimizer>/step_counter" (int64).
class DynamicLossScale {
 public:
  struct State {
    double scale = 1.0;
    std::int64_t good_steps = 0;
  };

  /// Throws kInvalidArgument if the scale or growth_steps is below 1, or if the multiplier is not
  /// above 1.
  DynamicLossScale(const std::string& optimizer, const DynamicLossScaleOptions& options);

  State read() const;
  /// Updates the variables after a step for which read() returned `state`. Collective, with equal
  /// arguments; no replica may read the variables concurrently.
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
