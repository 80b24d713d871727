// Implements FullyShardedStrategy over the workers of a cluster.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/strategy_options.h"
#include "tutti/strategy/fully_sharded_strategy.h"

namespace tutti {
namespace {

/// Joins the cluster. For a single worker, returns the setup of a process outside a cluster.
internal::TeamSetup joined(const ClusterResolver& resolver, const FullyShardedOptions& options) {
  std::shared_ptr<WorkerGroup> group = WorkerGroup::join(resolver, options.cluster);
  if (group->num_workers() == 1) return {.options = options.local};
  return internal::join_team("fully_sharded", std::move(group), options.local, {});
}

}  // namespace

FullyShardedStrategy::FullyShardedStrategy(const ClusterResolver& resolver,
                                           FullyShardedOptions options)
    : FullyShardedStrategy(joined(resolver, options), options) {}

}  // namespace tutti
