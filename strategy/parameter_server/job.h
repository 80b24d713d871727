// This process's part in a job with parameter servers whose workers train by themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/interruption.h"
#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/cluster/worker_group.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/remote_service.h"
#include "tutti/strategy/parameter_server/job_watch.h"
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

/// The servers of a cluster behind connections, all of which can be ended at once. Threads: any.
class ServerConnections {
 public:
  /// Connects to all of them, as RpcClient::connect(). `outlives_servers`: calls wait for a server
  /// that is started again, which knows what it has done already. Throws what fail_all() was given.
  void connect(const ClusterSpec& cluster, const Task& self, const WorkerGroupOptions& group,
               const ServerOptions& options, bool outlives_servers = false);
  /// Connecting, and calls under way and later, end with this error.
  void fail_all(const Error& error);
  /// Once connected.
  std::vector<std::shared_ptr<VariableService>> services() const;

 private:
  const std::shared_ptr<Interruption> interruption_ = std::make_shared<Interruption>();
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<RemoteService>> services_ TUTTI_GUARDED_BY(mutex_);
};

/// One per process, in a job without a coordinator.
class ParameterServerJob {
 public:
  /// Workers wait for each other, unless they train apart, and for all servers. With fewer than
  /// `workers_needed` workers left the run is lost. Throws as WorkerGroup::join(),
  /// Server and RpcClient::connect().
  ParameterServerJob(const ClusterResolver& resolver, const WorkerGroupOptions& cluster,
                     ServerOptions server, bool trains_apart, int workers_needed);
  ~ParameterServerJob();

  ParameterServerRole role() const { return role_; }
  const std::string& task() const { return task_; }
  /// A worker's; nullptr where they train apart.
  std::shared_ptr<WorkerGroup> workers() const { return workers_; }
  std::vector<std::shared_ptr<VariableService>> servers() const { return servers_.services(); }

  /// Of a server: serves until the workers are done; of a chief: waits until they are; or until the
  /// run is lost, as the job finds out where there is a launcher. Returns the exit code of this
  /// process, and logs why it is not 0.
  int serve();

 private:
  void subscribe(int num_workers);

  const ParameterServerRole role_;
  const std::string task_;
  const WorkerGroupOptions group_;
  ServerConnections servers_;  // of a worker
  std::unique_ptr<Server> server_;
  std::shared_ptr<JobWatch> watch_;                   // nullptr: nobody watches over the job
  std::vector<std::shared_ptr<void>> subscriptions_;  // they call the three before
  std::shared_ptr<WorkerGroup> workers_;              // calls the watch
};

}  // namespace tutti::internal
