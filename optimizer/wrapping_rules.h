// Rules around a rule: weight decay before it, a moving average after it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
class MovingAverageRule final : public UpdateRule {
 public:
  /// Throws kInvalidArgument, naming `optimizer`, for a momentum outside [0, 1] or a frequency
  /// below 1.
  MovingAverageRule(std::string_view optimizer, const EmaOptions& options);
  std::string_view name() const override { return "ema"; }
  Json describe() const override;
  std::vector<SlotSpec> slots() const override { return {{"average", 0.0}}; }
  void apply(const UpdateArgs& args) const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;

 private:
  double momentum_at(std::int64_t iteration) const;
  bool overwrites_at(std::int64_t iteration) const;
  EmaOptions options_;
};

}  // namespace tutti::internal
