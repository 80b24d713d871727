// Which parameter server gets the next shard.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ostream>
#include <vector>

namespace tutti {

/// kRoundRobin: ps 0, ps 1, ... in order of creation, as tf does. kLeastBytes: the one that holds
/// the fewest bytes so far (of equal ones the first): tf's GreedyLoadBalancingStrategy with
/// byte_size_load_fn. Both depend on the order of creation alone, so that clients that build the
/// same variables agree.
enum class VariablePlacement { kRoundRobin, kLeastBytes };
std::ostream& operator<<(std::ostream& out, VariablePlacement placement);

namespace internal {

/// Threads: one at a time.
class ServerPicker {
 public:
  /// Throws kInvalidArgument for no servers.
  ServerPicker(VariablePlacement placement, int num_servers);
  /// For a shard of that many bytes.
  int next(std::size_t num_bytes);

 private:
  VariablePlacement placement_;
  std::vector<std::size_t> bytes_;  // per server
  int next_ = 0;
};

}  // namespace internal
}  // namespace tutti
