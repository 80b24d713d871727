// How a strategy with parameter servers keeps pace, spreads variables, and outlives its servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
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

/// With a ClusterCoordinator whose SnapshotOptions name a folder. The same on all tasks.
enum class Durability : std::uint8_t {
  /// A server process that is lost ends the run.
  kNone = 0,
  /// Each server writes every change into a file before it confirms it. One that is started again
  /// has all that it confirmed, and the others keep what they have. A lost disk is lost:
  /// checkpoints are for that.
  kLogged = 1,
};
/// "none", "logged".
std::string to_string(Durability durability);
std::ostream& operator<<(std::ostream& out, Durability durability);
/// Throws kInvalidArgument listing them.
Durability parse_durability(const std::string& text);

}  // namespace tutti
