// An update rule whose long runs two threads apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// `rule` with the same bits: elementwise, so that any partition gives them. Runs of many mebibytes
/// are split in two halves, one of which another thread applies meanwhile: whoever waits for the
/// answer to a push waits for half as long. Not for rules with uses_norms().
class HalvedRule final : public UpdateRule {
 public:
  /// `rule` outlives it.
  explicit HalvedRule(const UpdateRule& rule) : rule_(rule) {}

  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override;
  bool skips_zero_gradient() const override { return rule_.skips_zero_gradient(); }
  bool decays_weights() const override { return rule_.decays_weights(); }

  /// Bytes of weights from which on a run is split.
  static constexpr std::size_t kWorthSplitting = std::size_t{8} << 20;

 private:
  const UpdateRule& rule_;
};

}  // namespace tutti::internal
