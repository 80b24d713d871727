// Arithmetic on gradients, dense or sparse: sums, quotients and copies that keep the kind;
// IndexedSlices of several replicas, concatenated, or summed with the bits of the dense sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// The sum of gradients of one kind, on the device of the first: dense ones along the canonical
/// tree, IndexedSlices concatenated. Throws kInvalidArgument for none, a mix of kinds, or differing
/// shapes or types. tf's aggregate_tensors_or_indexed_slices.
Gradient aggregate(std::span<const Gradient> gradients);

/// Each element divided by `divisor`; IndexedSlices stay sparse. Floating types only
/// (kInvalidArgument). tf's divide_by_n_tensors_or_indexed_slices.
Gradient divide_by(const Gradient& gradient, double divisor);

/// The same value on `device`; IndexedSlices stay sparse, none stays none.
Gradient copy_to(const Gradient& gradient, Device device);

/// Where the values are. Throws kFailedPrecondition when there is no gradient.
Device device_of(const Gradient& gradient);

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
