// How shards of variables are spread over parameter servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

namespace tutti {

/// kRoundRobin: ps 0, ps 1, ... in order of creation, as tf does. kLeastBytes: the one that holds
/// the fewest bytes so far (of equal ones the first): tf's GreedyLoadBalancingStrategy with
/// byte_size_load_fn. Both depend on the order of creation alone, so that clients that build the
/// same variables agree.
enum class VariablePlacement { kRoundRobin, kLeastBytes };
std::ostream& operator<<(std::ostream& out, VariablePlacement placement);

}  // namespace tutti
