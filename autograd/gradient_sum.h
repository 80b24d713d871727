// The sum of the gradients that reach one value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// Gradients of slices: blocks of a tensor, put together once instead of padded one by one.

/// The gradient of a tensor of shape `whole` that is 0 but for `values`, which begin at `begin`.
struct GradientBlock {
  Tensor values;
  std::vector<std::int64_t> begin;
  Shape whole;
};

/// The block with zeros around it.
Tensor padded(const GradientBlock& block);

/// The sum of blocks of one tensor, in an order that depends on the blocks alone. Those that were
/// cut from one axis and do not overlap, as those of split() and unstack(), become one
/// concatenation, whose cost does not grow with their number. Computes with operations, so that
/// outer tapes see the sum.
Tensor joined(const std::vector<GradientBlock>& blocks);

/// Adds in the order of the calls. Sparse gradients are kept apart and concatenated in that order;
/// together with a dense one they become dense. Blocks are joined and added to dense ones. Computes
/// with operations, so that outer tapes see the sums.
class GradientSum {
 public:
  void add(const Gradient& gradient);
  void add(GradientBlock block) { blocks_.push_back(std::move(block)); }
  Gradient total() const;
  /// The total as a tensor; undefined when nothing was added.
  Tensor dense_total() const;
  void clear();

 private:
  IndexedSlices joined_slices() const;
  /// The dense gradients and the blocks.
  Tensor dense_part() const;

  Tensor dense_;
  std::vector<IndexedSlices> slices_;
  std::vector<GradientBlock> blocks_;
};

}  // namespace tutti::internal
