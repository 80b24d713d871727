// Gradients of several steps, kept until their sum is applied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti::internal {

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
