// Parts of weights on several devices: ranges, initial values, and sums of results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tutti/model/layers/initializers.h"

namespace tutti::internal {

/// Indices first, ..., first + count - 1 of an axis.
struct Part {
  std::int64_t first = 0, count = 0;
};

/// Splits `length` into consecutive parts whose sizes differ by at most one, larger ones first.
/// Throws kInvalidArgument naming `who` if there are no parts or more than `length`.
std::vector<Part> parts_of(std::string_view who, std::int64_t length, std::size_t num_parts);

/// Initialises a part of a weight of shape `whole`, split along axis 0 or the last of two, with the
/// values that `initializer` gives the whole. Distributions are drawn in blocks on the part's
/// device, without ever storing the whole.
Initializer part_initializer(const Initializer& initializer, const Shape& whole, int axis,
                             Part part);

/// Returns the sum of values of one shape on `device`, along the canonical tree
/// (docs/determinism.md). Tapes record transfers and additions.
Tensor canonical_sum(std::vector<Tensor> values, Device device);

/// Throws kFailedPrecondition naming `who` in the scope of a strategy, which places variables.
void require_no_strategy(std::string_view who);

}  // namespace tutti::internal
