// IndexedSlices of several replicas: concatenated, or summed with the bits of the dense sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Rows of all replicas in replica order, duplicates kept (tf's rule). MEAN divides by the number
/// of replicas, not by the number of those that touch a row. Throws kInvalidArgument naming the
/// replicas whose dense shapes or types differ, or for another operation.
IndexedSlices concatenate_slices(ReduceOp op, std::span<const IndexedSlices> per_replica,
                                 Device destination);

/// The sum over replicas with unique ascending indices: each replica's own duplicates are added in
/// position order, then rows along the canonical tree, a replica without the row counting as zeros.
/// So the bits are those of the dense sum (a row of -0 alone becomes +0 there too, once another
/// replica counts as zero).
IndexedSlices sum_slices_canonically(std::span<const IndexedSlices> per_replica,
                                     Device destination);

}  // namespace tutti
