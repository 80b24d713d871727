// Interpretation of a strategy's options, for one process and for one of several workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cluster/worker_group.h"
#include "strategy/multi_worker/worker_team.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

/// Returns the device of each replica; consecutive replicas share a device. Throws kInvalidArgument
/// naming `who` for missing or duplicate devices, and for too few replicas.
std::vector<Device> replica_devices_of(std::string_view who, const LocalStrategyOptions& options);

/// Returns the XLA devices that `options` names, one per replica, and replaces each of them in
/// `options` with a CPU device: xla:i with cpu:i. Returns an empty vector if `who` does not compute
/// on XLA. Throws kInvalidArgument or kUnimplemented, naming `who` and the option, if an option
/// does not apply to XLA.
std::vector<Device> consume_xla_devices(std::string_view who, LocalStrategyOptions& options);

/// Throws kInvalidArgument, naming `who`, unless replica_weights is empty or has one positive
/// number for each of the `num_replicas` replicas of all workers.
void check_weights(std::string_view who, const LocalStrategyOptions& options, int num_replicas);

/// Builds the cross-device operation. Throws kInvalidArgument if it does not satisfy
/// LocalStrategyOptions::deterministic.
std::unique_ptr<CrossDeviceOps> build_ops(std::string_view who, const LocalStrategyOptions& options,
                                          const std::vector<Device>& replica_devices);

/// Returns `options`. Logs a warning once if a launcher started several copies of this program,
/// because a single-process strategy does not connect them.
LocalStrategyOptions checked_for_workers(LocalStrategyOptions options);

struct TeamSetup {
  /// Options for this worker's strategy, with the worker's share of the replicas. With several
  /// workers, the strategy combines its own replicas' values in canonical order.
  LocalStrategyOptions options = {};
  std::shared_ptr<WorkerTeam> team = {};
};

/// Connects the workers. `options.replicas` is the total number of replicas on all workers;
/// `options.cross_device_ops` names the algorithm that sums gradients across workers. `who` is the
/// prefix of messages. Collective. Throws kInvalidArgument for contradictory options or a worker
/// without replicas, and kUnimplemented for compression with an algorithm other than canonical.
TeamSetup join_team(std::string_view who, std::shared_ptr<WorkerGroup> group,
                    const LocalStrategyOptions& options, const StragglerOptions& stragglers);
/// Same as above, but over a communicator, whose algorithm sums the gradients.
TeamSetup join_team(std::string_view who, std::unique_ptr<Communicator> communicator,
                    const LocalStrategyOptions& options, const StragglerOptions& stragglers = {});

}  // namespace tutti::internal
