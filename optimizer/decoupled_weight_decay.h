// Weight decay before any rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

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

}  // namespace tutti::internal
