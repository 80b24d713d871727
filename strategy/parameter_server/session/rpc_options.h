// How tasks of a job with parameter servers reach each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/strategy/parameter_server/session/server.h"

namespace tutti::internal {

/// Throws kInvalidArgument when the resolver names another layer than "grpc" (or none).
void check_rpc_layer(const ClusterResolver& resolver);
/// TUTTI_RESTART.
std::uint64_t restarts_of_task();
/// For a server at the address of its task.
RpcServerOptions rpc_server_options(const ClusterSpec& cluster, const Task& task,
                                    const ServerOptions& options);
/// How the task `self` calls another one.
RpcClientOptions rpc_client_options(const Task& self, const MemberTask& server,
                                    const WorkerGroupOptions& cluster,
                                    const ServerOptions& options);

}  // namespace tutti::internal
