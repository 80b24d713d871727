// Implements MeshStrategy across the workers of a cluster.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/strategy_options.h"
#include "tutti/strategy/mesh/mesh_strategy.h"

namespace tutti {

MeshStrategy::MeshStrategy(const ClusterResolver& resolver, MeshOptions options)
    : MeshStrategy(joined(resolver, options), options) {}

internal::TeamSetup MeshStrategy::joined(const ClusterResolver& resolver,
                                         const MeshOptions& options) {
  std::shared_ptr<WorkerGroup> group = WorkerGroup::join(resolver, options.cluster);
  LocalStrategyOptions local = options_of_blocks(options, group->num_workers());
  if (group->num_workers() == 1) return {.options = std::move(local)};
  return internal::join_team("mesh", std::move(group), local, {});
}

}  // namespace tutti
