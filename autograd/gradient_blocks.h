// Gradients of slices: blocks of a tensor, put together once instead of padded one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

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

}  // namespace tutti::internal
