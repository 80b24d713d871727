// How the workers of a strategy with parameter servers keep pace, and where its variables are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

namespace tutti {

/// kSync: all workers make each step together, as under MultiWorkerMirroredStrategy. In the others
/// they train apart (tf's between-graph replication): each has its own loop and its own batches,
/// and sends its updates to the servers. kAsync: no worker waits for another. kSyncReplicas:
/// servers add up the gradients of a step of as many workers as are wanted, and apply them once;
/// those that come later are dropped. tf's SyncReplicasOptimizer.
enum class UpdateMode { kSync, kAsync, kSyncReplicas };

/// "sync", "async", "sync_replicas". parse throws kInvalidArgument listing them.
std::string_view to_string(UpdateMode mode);
UpdateMode parse_update_mode(std::string_view text);

/// kRoundRobin: ps 0, ps 1, ... in order of creation, as tf does. kLeastBytes: the one that holds
/// the fewest bytes so far (of equal ones the first): tf's GreedyLoadBalancingStrategy with
/// byte_size_load_fn. Both depend on the order of creation alone, so that clients that build the
/// same variables agree.
enum class VariablePlacement { kRoundRobin, kLeastBytes };
std::ostream& operator<<(std::ostream& out, VariablePlacement placement);

}  // namespace tutti
