// RPC options for connections between tasks of a job with parameter servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/strategy/parameter_server/session/server.h"

namespace tutti::internal {

/// Throws kInvalidArgument if the resolver's RPC layer is neither "grpc" nor empty.
void check_rpc_layer(const ClusterResolver& resolver);
/// Returns the value of TUTTI_RESTART; 0 if it is not set.
std::uint64_t restarts_of_task();
/// Returns the options for a server at the address of its task.
RpcServerOptions rpc_server_options(const ClusterSpec& cluster, const Task& task,
                                    const ServerOptions& options);
/// Returns the options with which the task `self` calls the task `server`.
RpcClientOptions rpc_client_options(const Task& self, const MemberTask& server,
                                    const WorkerGroupOptions& cluster,
                                    const ServerOptions& options);

}  // namespace tutti::internal
