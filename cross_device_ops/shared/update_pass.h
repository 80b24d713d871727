// Sum of gradients and the optimizer's step in one pass over memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/cross_device_ops/fused_update.h"

namespace tutti::internal {

/// A range of one buffer in the memory of all ranks.
struct UpdateRange {
  DType dtype = DType::kFloat32;
  std::size_t count = 0;
  std::span<const std::byte* const> gradients;     // [rank]
  std::span<std::byte* const> weights;             // [rank]
  std::span<const std::vector<std::byte*>> slots;  // [slot][rank]
  std::size_t reader = 0;                          // the rank whose weights and slots are read
};

/// Sums the gradients along the canonical tree, divides by their number if `mean`, applies `rule`
/// to the reader's weights and slots, and copies the results to all other ranks; block by block, a
/// block being short enough for the first-level cache. `past_caches`: the copies are too large to
/// be found in a cache later.
void sum_and_update(const UpdateRule& rule, const UpdateScalars& scalars, bool mean,
                    bool past_caches, const UpdateRange& range);

}  // namespace tutti::internal
