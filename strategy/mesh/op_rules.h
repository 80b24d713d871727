// Sharding rules for operations: which dimensions of inputs and outputs are sharded together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tutti/tensor/op.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// Factor of each dimension of a tensor; kWhole: each position needs the whole dimension.
struct FactorsOfTensor {
  static constexpr std::int8_t kWhole = -1;
  FactorsOfTensor() { factors.fill(kWhole); }
  std::int8_t& operator[](int dim) { return factors[static_cast<std::size_t>(dim)]; }
  std::int8_t operator[](int dim) const { return factors[static_cast<std::size_t>(dim)]; }
  std::array<std::int8_t, Shape::kMaxRank> factors;
};

/// Inputs that may stay partial, because the operation is linear in them. The output is then
/// partial, too. kTogether: all inputs must be partial over the same axes. An input that is not
/// partial counts as partial: each position contributes an equal share of it.
enum class Linearity {
  kNone,      // f(a + b) is not f(a) + f(b)
  kTogether,  // linear in all inputs together: f(a1 + a2, b1 + b2) = f(a1, b1) + f(a2, b2)
  kEach,      // linear in any one input, if the others are not partial
  kFirst,     // linear in the first input, if the others are not partial
};

/// Sharding rule for one operation, in the manner of Shardy's op_sharding_rule: a *factor* is an
/// index of the loop nest that the operation represents (m, n and k of a product). Dimensions with
/// the same factor are sharded alike, so each position applies the same operation to its parts of
/// the inputs and gets its part of the outputs. If an output lacks a factor of the inputs, the
/// positions' outputs are combined over the axes of that factor.
struct OpRule {
  std::vector<FactorsOfTensor> inputs, outputs;
  int num_factors = 0;
  /// Reduction that combines the positions' outputs.
  ReduceOp combination = ReduceOp::kSum;
  Linearity linearity = Linearity::kNone;
};

/// Returns the rule for the call; nullopt if the operation has no rule.
std::optional<OpRule> rule_of(const OpCall& call);

}  // namespace tutti::internal
