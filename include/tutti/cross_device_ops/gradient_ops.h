// Arithmetic on gradients: sums, quotients and copies of dense or sparse gradients, without
// conversion. IndexedSlices of several replicas can be concatenated, or summed bit-identically to
// their dense form.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Returns the sum of gradients of one kind, on the device of the first gradient. Dense gradients
/// are added along the canonical tree; IndexedSlices are concatenated. Throws kInvalidArgument for
/// an empty list, a mix of kinds, or differing shapes or types. Equivalent to tf's
/// aggregate_tensors_or_indexed_slices.
Gradient aggregate(std::span<const Gradient> gradients);

/// Divides each element by `divisor`; IndexedSlices stay sparse. Throws kInvalidArgument unless the
/// type is floating-point. Equivalent to tf's divide_by_n_tensors_or_indexed_slices.
Gradient divide_by(const Gradient& gradient, double divisor);

/// Returns the value on `device`; IndexedSlices stay sparse, and an absent gradient stays absent.
Gradient copy_to(const Gradient& gradient, Device device);

/// Returns the device of the values. Throws kFailedPrecondition if there is no gradient.
Device device_of(const Gradient& gradient);

/// Concatenates the rows of all replicas in replica order, keeping duplicates (tf's rule). MEAN
/// divides by the total number of replicas, even for rows that only some replicas have. Throws
/// kInvalidArgument if `op` is neither SUM nor MEAN, or if dense shapes or types differ; the
/// message names the replicas.
IndexedSlices concatenate_slices(ReduceOp op, std::span<const IndexedSlices> per_replica,
                                 Device destination);

/// Returns the sum of all replicas' slices, with unique ascending indices. First adds each
/// replica's own duplicates in position order, then adds rows along the canonical tree, where a
/// missing row counts as zeros. The result is therefore bit-identical to the dense sum. In both
/// sums, -0 from one replica plus +0 from another gives +0.
IndexedSlices sum_slices_canonically(std::span<const IndexedSlices> per_replica,
                                     Device destination);

}  // namespace tutti
