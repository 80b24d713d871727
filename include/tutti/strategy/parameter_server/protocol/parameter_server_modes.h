// Update modes and variable placement for a parameter-server strategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

namespace tutti {

/// Synchronization of workers. kSync: all workers make each step together, as under
/// MultiWorkerMirroredStrategy. In the other modes, workers train independently (tf's between-graph
/// replication): each worker has its own loop and batches, and sends its updates to the servers.
/// kAsync: no worker waits for another. kSyncReplicas: as in tf's SyncReplicasOptimizer, servers
/// collect the gradients of a step until the required number has arrived, apply their sum once, and
/// drop later gradients.
enum class UpdateMode { kSync, kAsync, kSyncReplicas };

/// to_string() returns "sync", "async" or "sync_replicas". parse_update_mode() throws
/// kInvalidArgument, listing these names, for any other text.
std::string_view to_string(UpdateMode mode);
UpdateMode parse_update_mode(std::string_view text);

/// Placement of shards on servers. kRoundRobin uses ps 0, ps 1, ... in creation order, as in tf.
/// kLeastBytes uses the server that stores the fewest bytes so far, or the first such server if
/// several tie, like tf's GreedyLoadBalancingStrategy with byte_size_load_fn. Both depend only on
/// the creation order, so clients that create the same variables choose the same servers.
enum class VariablePlacement { kRoundRobin, kLeastBytes };
std::ostream& operator<<(std::ostream& out, VariablePlacement placement);

}  // namespace tutti
