// Copying what nobody reads soon, without first reading the place that it goes to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tutti::internal {

/// As std::memcpy, but the copy goes to memory without a stay in the caches, where the processor
/// can: half the time for a copy that is larger than the caches, more for who reads it at once.
/// Other threads see the copy after finish_copies(). Any thread.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t count);

/// Whatever this thread stores from now on is seen after its copies.
void finish_copies();

}  // namespace tutti::internal
