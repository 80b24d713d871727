// The sum of the gradients that reach one value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "tutti/autograd/gradient_blocks.h"
#include "tutti/tensor/gradient.h"

namespace tutti::internal {

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
