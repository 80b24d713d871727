// Parts of weights on several devices: where each begins, its initial values, sums of results.
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

/// `length` in consecutive parts whose sizes differ by one at most, earlier ones the larger. Throws
/// kInvalidArgument naming `who` when there are no parts or more than `length`.
std::vector<Part> parts_of(std::string_view who, std::int64_t length, std::size_t num_parts);

/// Fills a part of a weight of shape `whole`, cut along axis 0 or the last of two, with what
/// `initializer` gives the whole. Distributions are drawn in blocks on the part's device: the whole
/// is never there.
Initializer part_initializer(const Initializer& initializer, const Shape& whole, int axis,
                             Part part);

/// The sum of values of one shape on `device`, along the canonical tree (docs/determinism.md).
/// Tapes see transfers and additions.
Tensor canonical_sum(std::vector<Tensor> values, Device device);

/// Throws kFailedPrecondition naming `who` in the scope of a strategy, which places variables.
void require_no_strategy(std::string_view who);

}  // namespace tutti::internal
