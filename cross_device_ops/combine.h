// Combines two runs of elements: what a step of an algorithm does with what it received.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// out[i] = left[i] op right[i] with the arithmetic of reduce_along_tree(): integers wrap around,
/// NaN wins in MIN and MAX, 16-bit numbers are rounded once. Memory of any alignment; `out` may be
/// `left` or `right`, else they do not overlap. kInvalidArgument for bool but MIN and MAX,
/// kInternal for MEAN. Any thread.
void combine(ReduceOp op, DType dtype, const std::byte* left, const std::byte* right,
             std::byte* out, std::size_t count);

}  // namespace tutti::internal
