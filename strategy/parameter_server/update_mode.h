// How the workers of parameter servers keep pace with each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tutti {

/// kSync: all workers make each step together, as under MultiWorkerMirroredStrategy. In the others
/// they train apart (tf's between-graph replication): each has its own loop and its own batches,
/// and sends its updates to the servers. kAsync: nobody waits for anybody. kStaleSync: nobody reads
/// while another one is more than `staleness` steps behind (0: all are in the same step).
/// kSyncReplicas: servers add up the gradients of a step of as many workers as are wanted, and
/// apply them once; those that come later are dropped. tf's SyncReplicasOptimizer.
enum class UpdateMode { kSync, kAsync, kStaleSync, kSyncReplicas };

/// "sync", "async", "ssp", "sync_replicas". parse throws kInvalidArgument listing them.
std::string_view to_string(UpdateMode mode);
UpdateMode parse_update_mode(std::string_view text);

}  // namespace tutti
