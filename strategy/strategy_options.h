// What the options of a strategy mean, for one process and for a worker of several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cluster/worker_group.h"
#include "strategy/multi_worker/worker_team.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

/// The device of each replica: consecutive replicas share a device. Throws kInvalidArgument naming
/// `who` for devices that are not there, or stand twice, and too few replicas.
std::vector<Device> replica_devices_of(std::string_view who, const LocalStrategyOptions& options);

/// For the strategies that compute on XLA's devices: those that the options name, of each replica;
/// empty: they name none. Then the options are those of the host, for which a replica on xla:i is
/// on cpu:i. Throws kInvalidArgument or kUnimplemented naming `who` and the option that a step
/// which XLA computes has no use for.
std::vector<Device> take_xla_devices(std::string_view who, LocalStrategyOptions& options);

/// Throws kInvalidArgument naming `who` unless replica_weights is empty or has one positive number
/// for each of `num_replicas` (of all workers).
void check_weights(std::string_view who, const LocalStrategyOptions& options, int num_replicas);

/// By the rule of LocalStrategyOptions::deterministic.
std::unique_ptr<CrossDeviceOps> build_ops(std::string_view who, const LocalStrategyOptions& options,
                                          const std::vector<Device>& replica_devices);

/// Returns `options`. Logs a warning once if a launcher started several copies of this program,
/// none of which joins the others under a strategy of one process.
LocalStrategyOptions checked_for_workers(LocalStrategyOptions options);

struct TeamSetup {
  /// Of this worker's strategy: its share of the replicas; what it combines alone it combines
  /// in canonical order, but for GPUs without other workers.
  LocalStrategyOptions options = {};
  std::shared_ptr<WorkerTeam> team = {};
};

/// `options.replicas` are those of all workers; `options.cross_device_ops` name what sums gradients
/// between them. `who` stands in front of messages. Called by all workers. Throws kInvalidArgument
/// for options that contradict each other or give a worker no replica, kUnimplemented for
/// compression with what does not add in canonical order.
TeamSetup join_team(std::string_view who, std::shared_ptr<WorkerGroup> group,
                    const LocalStrategyOptions& options, const StragglerOptions& stragglers);
/// The same over a communicator, whose algorithm sums the gradients.
TeamSetup join_team(std::string_view who, std::unique_ptr<Communicator> communicator,
                    const LocalStrategyOptions& options, const StragglerOptions& stragglers = {});

}  // namespace tutti::internal
