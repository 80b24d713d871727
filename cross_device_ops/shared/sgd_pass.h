// Sum of gradients and a plain SGD step without leaving the registers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/shared/update_pass.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// What sum_and_update() does past the caches, for SGD without momentum on float32 and 2 to 8
/// ranks, a line of memory at a time: no block is written and read again. The same bits. false,
/// and nothing done: another rule, type or number of ranks, a processor without AVX-512, or weights
/// of which not all begin at a line.
bool sum_and_sgd_past_caches(const UpdateRule& rule, const UpdateScalars& scalars, bool mean,
                             const UpdateRange& range);

}  // namespace tutti::internal
