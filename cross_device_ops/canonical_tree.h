// The canonical tree: one order of additions for a given number of replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Combines `inputs` (one per replica) into `output` along the canonical tree over the replica
/// number: in each round neighbour 2i+1 is added to 2i, an odd last one passes up. 16-bit numbers
/// are combined as floats and rounded once. Inputs are not changed; `output` may be one of them.
/// MEAN is refused. docs/determinism.md.
void reduce_along_tree(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                       std::byte* output, std::size_t count);

/// The same for tensors of one shape and dtype (one per replica, on any device): result on
/// `destination`. MEAN divides by the number of values; for integers MEAN gives float32 (tf's true
/// division).
Tensor reduce_tensors_along_tree(ReduceOp op, std::span<const Tensor> values, Device destination);

}  // namespace tutti
