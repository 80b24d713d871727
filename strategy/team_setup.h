// What a worker of several needs for its strategy: its options, and the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "cluster/worker_group.h"
#include "strategy/multi_worker/worker_team.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

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
