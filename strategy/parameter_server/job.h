// This process's part in a job with parameter servers that trains synchronously.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/cluster/worker_group.h"
#include "tutti/strategy/parameter_server/protocol/variable_service.h"
#include "tutti/strategy/parameter_server/server.h"

namespace tutti::internal {

/// kWorker trains; kServer holds variables; kChief has nothing to do, for workers train by
/// themselves.
enum class ParameterServerRole { kWorker, kServer, kChief };

/// Throws kInvalidArgument for a cluster that is none for parameter servers: a job of another name,
/// no worker, no ps, more than one chief, a task that is none of them.
ParameterServerRole parameter_server_role(const ClusterResolver& resolver);

/// How the task `self` calls another one.
RpcClientOptions rpc_client_options(const Task& self, const MemberTask& server,
                                    const WorkerGroupOptions& cluster,
                                    const ServerOptions& options);
/// Waits for all servers of the cluster, as RpcClient::connect(). `outlives_servers`: calls wait
/// for a server that is started again, which knows what it has done already.
std::vector<std::shared_ptr<VariableService>> connect_to_servers(const ClusterSpec& cluster,
                                                                 const Task& self,
                                                                 const WorkerGroupOptions& group,
                                                                 const ServerOptions& options,
                                                                 bool outlives_servers = false);
/// Other threads of the program may still run, so that destructors of its globals must not.
[[noreturn]] void end_process(int code);

/// One per process.
class ParameterServerJob {
 public:
  /// Workers wait for each other, unless they train apart, and for all servers. The resolver's
  /// rpc_layer(), if it names one, is the wire ("grpc", "tcp"). Throws as WorkerGroup::join(),
  /// Server and RpcClient::connect().
  ParameterServerJob(const ClusterResolver& resolver, const WorkerGroupOptions& cluster,
                     ServerOptions server, bool trains_apart = false);
  ~ParameterServerJob();

  ParameterServerRole role() const { return role_; }
  /// A worker's; nullptr where they train apart.
  std::shared_ptr<WorkerGroup> workers() const { return workers_; }
  const std::vector<std::shared_ptr<VariableService>>& servers() const { return servers_; }

  /// Of a server: serves until the workers are done; of a chief: waits until they are. Returns the
  /// exit code of this process.
  int stand_aside();

 private:
  class Bystander;

  const ParameterServerRole role_;
  std::string task_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Bystander> bystander_;
  std::shared_ptr<WorkerGroup> workers_;
  std::vector<std::shared_ptr<VariableService>> servers_;
};

}  // namespace tutti::internal
