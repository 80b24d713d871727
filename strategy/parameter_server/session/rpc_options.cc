// Identity and credentials of both ends of a connection, from options and the environment.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/rpc_options.h"

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/net/job_durations.h"

namespace tutti::internal {
namespace {

template <class RpcOptions>
void set_identity(RpcOptions& rpc, const ServerOptions& options) {
  rpc.incarnation = restarts_of_task();
  rpc.job_id = options.job_id.empty() ? Environment::of_process().find("TUTTI_JOB_ID").value_or("")
                                      : options.job_id;
  rpc.secret = options.secret.is_set() ? options.secret : JobSecret::from_environment();
  rpc.tls = options.tls;
}

}  // namespace

void check_rpc_layer(const ClusterResolver& resolver) {
  if (resolver.rpc_layer().empty() || resolver.rpc_layer() == "grpc") return;
  fail(ErrorCode::kInvalidArgument, resolver.name(), ": expected rpc_layer 'grpc', got '",
       resolver.rpc_layer(), "'");
}

std::uint64_t restarts_of_task() {
  return static_cast<std::uint64_t>(
      Environment::of_process().find_int("TUTTI_RESTART", 0, 1 << 30).value_or(0));
}

RpcServerOptions rpc_server_options(const ClusterSpec& cluster, const Task& task,
                                    const ServerOptions& options) {
  RpcServerOptions rpc;
  set_identity(rpc, options);
  rpc.address = cluster.task_address(task.type, task.index);
  rpc.self = {task.type, task.index, rpc.address};
  rpc.allow_insecure_network = options.allow_insecure_network;
  return rpc;
}

RpcClientOptions rpc_client_options(const Task& self, const MemberTask& server,
                                    const WorkerGroupOptions& cluster,
                                    const ServerOptions& options) {
  RpcClientOptions client;
  set_identity(client, options);
  client.self = {self.type, self.index, ""};
  client.server = server;
  client.connect_timeout = cluster.join_timeout;
  return client;
}

}  // namespace tutti::internal
