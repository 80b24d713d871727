// The sum of the gradients that reach one value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/tensor/gradient.h"

namespace tutti::internal {

/// Adds in the order of the calls. Sparse gradients are kept apart and concatenated in that order;
/// together with a dense one they become dense. Computes with operations, so that outer tapes see
/// the sums.
class GradientSum {
 public:
  void add(const Gradient& gradient);
  bool empty() const { return !dense_.defined() && slices_.empty(); }
  Gradient total() const;
  /// The total as a tensor; undefined when nothing was added.
  Tensor dense_total() const;
  void clear();

 private:
  IndexedSlices joined_slices() const;

  Tensor dense_;
  std::vector<IndexedSlices> slices_;
};

}  // namespace tutti::internal
