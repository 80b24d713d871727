// What an optimizer has besides its rule: state, and rules around that rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

// Weight decay before any rule.

/// w -= w * weight_decay * lr, then the rule it wraps. Block by block, so that weights are read
/// from memory once.
class DecoupledWeightDecayRule final : public UpdateRule {
 public:
  /// `rule` must outlive this one and use no norms.
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

// The exponential moving average of weights.

/// After an update: average = momentum * average + (1 - momentum) * w, in the first iteration w; in
/// every overwrite_frequency-th iteration w becomes the average. Ignores the gradient. Slot
/// "average".
class MovingAverageRule final : public FormulaRule {
 public:
  /// Throws kInvalidArgument, naming `optimizer`, for a momentum outside [0, 1] or a frequency
  /// below 1.
  MovingAverageRule(std::string_view optimizer, const EmaOptions& options);
  std::string_view name() const override { return "ema"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override { return {{"average", 0.0}}; }
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  EmaOptions options_;
};

// A number that an optimizer keeps beside its slots.

/// Equal in all replicas: written with assign_replicated() while no replica reads it.
inline Variable state_variable(const Tensor& value, std::string name) {
  return Variable(value, {.name = std::move(name),
                          .trainable = false,
                          .aggregation = VariableAggregation::kOnlyFirstReplica,
                          .on_host = true});
}

// Gradients of several steps, kept until their sum is applied.

/// The sums of the gradients that each replica has held back, and for how many steps. Sums are
/// ON_READ variables: a replica's own, and a checkpoint has each replica's.
class GradientAccumulator {
 public:
  /// Throws kInvalidArgument for `steps` below 1.
  GradientAccumulator(const std::string& optimizer, std::span<const Variable> variables,
                      std::int64_t steps);

  std::int64_t steps() const { return steps_; }
  /// For how many steps gradients are held: 0 .. steps() - 1. Equal in all replicas.
  std::int64_t num_held() const { return num_held_.value().item_int(); }

  /// Adds the gradients of one more step, the `num_held`-th from 0. Every replica; while none reads
  /// num_held().
  void hold(std::span<const Gradient> gradients, std::int64_t num_held);
  /// `gradient` of variable `index` and what is held of it; none if both are.
  Gradient total(std::size_t index, const Gradient& gradient) const;
  /// Holds nothing any more. Every replica; while none reads num_held().
  void clear();

  const Variable& num_held_variable() const { return num_held_; }
  std::span<const Variable> sums() const { return sums_; }

 private:
  std::int64_t steps_;
  Variable num_held_;
  std::vector<Variable> sums_;  // by variable; what is there while nothing is held has no meaning
};

}  // namespace tutti::internal

namespace tutti {

// Dynamic loss scaling: the scale, and when it changes.

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
