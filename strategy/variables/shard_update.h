// Updates of a shard: its part of a gradient, and rules that need norms of the whole variable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "autograd/replica_shards.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// [count]: that of the elements of `shard`. `gradient`: of a variable of shape `whole`, or of the
/// shard already; none stays none.
Gradient gradient_of_shard(const Gradient& gradient, const Shape& whole, const Shard& shard);

/// The first pass of a rule with norms as a rule: writes the unscaled step of each element.
class DirectionRule final : public UpdateRule {
 public:
  /// `direction`: as many elements as apply() gets, of their type.
  DirectionRule(const UpdateRule& rule, void* direction) : rule_(rule), direction_(direction) {}
  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override { rule_.direct(args, direction_); }

 private:
  const UpdateRule& rule_;
  void* const direction_;
};

/// The second pass as a rule: its gradients are directions, its scalars have the norms.
class ApplyRule final : public UpdateRule {
 public:
  explicit ApplyRule(const UpdateRule& rule) : rule_(rule) {}
  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override { rule_.apply(args); }

 private:
  const UpdateRule& rule_;
};

/// For ApplyRule: with the norms of all elements of the variable and of their directions.
UpdateScalars scalars_with_norms(const UpdateScalars& scalars, const Tensor& weights,
                                 const Tensor& directions);

}  // namespace tutti::internal
