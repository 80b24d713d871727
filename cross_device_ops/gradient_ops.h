// Arithmetic on gradients, dense or sparse: sums, quotients and copies that keep the kind.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/tensor/gradient.h"

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

}  // namespace tutti
