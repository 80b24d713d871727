// This process's part in a job with parameter servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cluster/net/socket.h"
#include "cluster/rpc/rpc_server.h"
#include "cluster/worker_group.h"
#include "strategy/parameter_server/client/server_link.h"
#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "strategy/parameter_server/job_watch.h"
#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"
#include "tutti/strategy/parameter_server/session/server.h"

namespace tutti {
class CoordinatedStrategy;
struct ParameterServerOptions;
}  // namespace tutti

namespace tutti::internal {

class ServerGroup;
class StepRegistry;
class WorkerService;

/// kWorker trains, or works for the chief; kServer holds variables; kChief coordinates, or has
/// nothing to do where workers train by themselves.
enum class ParameterServerRole { kWorker, kServer, kChief };

/// Throws kInvalidArgument for a cluster that is none for parameter servers: a job of another name,
/// no worker, no ps, more than one chief, a task that is none of them.
ParameterServerRole parameter_server_role(const ClusterResolver& resolver);

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

/// One per process. Workers train by themselves, or (`options.coordinated`) the chief gives
/// closures to them; servers hold the variables. Threads: any.
class ParameterServerJob {
 public:
  /// Joins the job. With a coordinator chief and workers wait for all servers, and nobody for a
  /// worker; without one workers wait for each other, unless they train apart, and for all servers,
  /// and with fewer than `workers_needed` workers left the run is lost. Throws kInvalidArgument for
  /// a coordinator without chief, and as parameter_server_role(), Server, WorkerGroup::join(),
  /// join_job() and RpcClient::connect().
  ParameterServerJob(const ClusterResolver& resolver, const ParameterServerOptions& options,
                     int workers_needed = 0);
  ~ParameterServerJob();

  ParameterServerRole role() const { return role_; }
  bool is_coordinated() const { return is_coordinated_; }
  bool is_chief() const { return role_ == ParameterServerRole::kChief; }
  const ClusterSpec& cluster() const { return cluster_; }
  const Task& task() const { return task_; }
  int num_workers() const { return cluster_.count("worker"); }
  /// "worker 1 (127.0.0.1:4711)".
  std::string worker_name(int worker) const;
  /// A worker's; nullptr with a coordinator, and where they train apart.
  std::shared_ptr<WorkerGroup> workers() const { return workers_; }
  /// Of workers, and of the chief that coordinates.
  std::vector<std::shared_ptr<VariableService>> servers() const { return servers_.services(); }
  /// On the chief that coordinates: servers accept its orders, and `group` hears of their losses.
  void coordinate(const std::shared_ptr<ServerGroup>& group);
  /// With a coordinator.
  JobWatch& watch() { return *watch_; }

  /// On the chief: the way to a worker, which may come later, and again. `registry` outlives it.
  std::unique_ptr<WorkerLink> connect_worker(int worker, const StepRegistry& registry);
  /// Of a server: serves until the workers, or the chief that coordinates, are done; of a chief
  /// that does not: waits until workers are; or until the run is lost, as the job finds out where
  /// there is a launcher. Returns the exit code of this process, and logs why it is not 0.
  int serve();
  /// The same of workers and servers of a coordinator; also until the closure that a worker is in
  /// has ended, which its calls of servers do not hold up.
  int serve(CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Throws kFailedPrecondition, with `what`, on a coordinator's worker or server before serve()
  /// and outside closures: what is changed there would be changed again by each of them, and by
  /// each that is started again.
  void require_closure_or_chief(const std::string& what) const;

 private:
  void serve_variables();
  void join_coordinated();
  void join_workers(const ClusterResolver& resolver, bool trains_apart, int workers_needed);
  void subscribe();

  const bool is_coordinated_;
  const ParameterServerRole role_;
  const ClusterSpec cluster_;
  const Task task_;
  const WorkerGroupOptions group_;
  const ServerOptions options_;
  std::atomic<bool> is_serving_{false};
  std::unique_ptr<Server> server_;  // of job ps, which ends with its variables
  /// nullptr: nobody watches over the job.
  std::shared_ptr<JobWatch> watch_;
  ServerConnections servers_;
  std::vector<std::shared_ptr<void>> subscriptions_;  // of the watch, which call those before
  std::shared_ptr<WorkerGroup> workers_;              // calls the watch
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<RpcServer> rpc_;  // of a worker; calls the service
};

}  // namespace tutti::internal
