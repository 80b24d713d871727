// What a server has done, by its name within the server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tutti/strategy/parameter_server/server_statistics.h"

namespace tutti::internal {

using StoreStatistics = ServerStatistics;

/// Counts one more of this difference.
inline void count_difference(StoreStatistics::Histogram& histogram, std::uint64_t difference) {
  ++histogram[std::min(difference, StoreStatistics::kGreatestDifference)];
}

}  // namespace tutti::internal
