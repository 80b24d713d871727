// A cluster that the program itself writes down.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/static_resolver.h"

#include <utility>

namespace tutti {

StaticResolver::StaticResolver(ClusterSpec cluster, StaticResolverOptions options)
    : cluster_(std::move(cluster)),
      master_(std::move(options.master)),
      name_(std::move(options.name)),
      num_accelerators_(std::move(options.num_accelerators)) {
  apply({options.task_type, options.task_id, options.rpc_layer, options.environment});
}

std::string StaticResolver::find_master(const MasterQuery& query) const {
  if (!query.task_type || !query.task_id) return format_master_url(master_, query.rpc_layer);
  return format_master_url(cluster_.task_address(*query.task_type, *query.task_id),
                           query.rpc_layer);
}

}  // namespace tutti
