// How a server of parameters is reached.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/strategy/parameter_server/server.h"

namespace tutti::internal {

/// Throws kInvalidArgument when the resolver names another layer than "grpc" (or none).
void check_rpc_layer(const ClusterResolver& resolver);
/// For a server at the address of its task.
RpcServerOptions rpc_server_options(const ClusterSpec& cluster, const Task& task,
                                    const ServerOptions& options);

}  // namespace tutti::internal
