// Role of this process in a job with parameter servers.
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

/// kWorker trains, or runs closures for the chief; kServer stores variables; kChief coordinates, or
/// has nothing to do if workers train by themselves.
enum class ParameterServerRole { kWorker, kServer, kChief };

/// Returns the role of this process. Throws kInvalidArgument if the cluster has no worker or no ps,
/// has other jobs or several chiefs, or does not contain this task.
ParameterServerRole parameter_server_role(const ClusterResolver& resolver);

/// Connections to the servers of a cluster. fail_all() ends all calls on them. Thread-safe.
class ServerConnections {
 public:
  /// Connects to all servers with RpcClient::connect(). If `outlives_servers` is true, a call to a
  /// server that is being restarted waits for the server and is repeated; servers recognize
  /// repeated changes. Throws the error passed to fail_all().
  void connect(const ClusterSpec& cluster, const Task& self, const WorkerGroupOptions& group,
               const ServerOptions& options, bool outlives_servers = false);
  /// Makes connect() and all pending and later calls fail with this error.
  void fail_all(const Error& error);
  /// Requires: connect() has returned.
  std::vector<std::shared_ptr<VariableService>> services() const;

 private:
  const std::shared_ptr<Interruption> interruption_ = std::make_shared<Interruption>();
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<RemoteService>> services_ TUTTI_GUARDED_BY(mutex_);
};

/// Membership of this process in a job. Workers train by themselves or, with `options.coordinated`,
/// run closures that the chief assigns; servers store the variables. Thread-safe.
class ParameterServerJob {
 public:
  /// Joins the job. With a coordinator, the chief and the workers wait for all servers, but not for
  /// other workers. Without one, workers wait for all servers and, unless they train independently,
  /// for each other; the run is lost if fewer than `workers_needed` workers remain. Throws
  /// kInvalidArgument for a coordinator without a chief, and the same errors as
  /// parameter_server_role(), Server, WorkerGroup::join(), join_job() and RpcClient::connect().
  ParameterServerJob(const ClusterResolver& resolver, const ParameterServerOptions& options,
                     int workers_needed = 0);
  ~ParameterServerJob();

  ParameterServerRole role() const { return role_; }
  bool is_coordinated() const { return is_coordinated_; }
  bool is_chief() const { return role_ == ParameterServerRole::kChief; }
  const ClusterSpec& cluster() const { return cluster_; }
  const Task& task() const { return task_; }
  int num_workers() const { return cluster_.count("worker"); }
  /// Returns a string such as "worker 1 (127.0.0.1:4711)".
  std::string worker_name(int worker) const;
  /// Returns the group of a worker; nullptr with a coordinator or if workers train independently.
  std::shared_ptr<WorkerGroup> workers() const { return workers_; }
  /// Returns the parameter servers. Only for workers and a coordinating chief.
  std::vector<std::shared_ptr<VariableService>> servers() const { return servers_.services(); }
  /// On a coordinating chief: lets `group` control the servers, and reports lost servers to it.
  void coordinate(const std::shared_ptr<ServerGroup>& group);
  /// Requires: is_coordinated().
  JobWatch& watch() { return *watch_; }

  /// On the chief: returns a link to a worker, which may start later. `registry` must outlive the
  /// link.
  std::unique_ptr<WorkerLink> connect_worker(int worker, const StepRegistry& registry);
  /// On a server, serves until the workers, or the coordinating chief, are done. On a chief that
  /// does not coordinate, waits until the workers are done. If the run is lost, also ends the
  /// launcher, if any. Returns the exit code of this process, and logs the reason if it is not 0.
  int serve();
  /// Overload for workers and servers of a coordinator. On a worker, also waits until the current
  /// closure ends; the closure's requests to servers fail.
  int serve(CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Throws kFailedPrecondition, with `what`, if a coordinator's worker or server calls it outside
  /// closures, because each of these tasks would repeat the operation, also after each restart.
  void require_closure_or_chief(const std::string& what) const;

 private:
  void serve_variables();
  void join_coordinated();
  void join_workers(const ClusterResolver& resolver, bool trains_apart, int workers_needed);

  const bool is_coordinated_;
  const ParameterServerRole role_;
  const ClusterSpec cluster_;
  const Task task_;
  const WorkerGroupOptions group_;
  const ServerOptions options_;
  std::atomic<bool> is_serving_{false};
  std::unique_ptr<Server> server_;  // only in job ps; owns the variables
  /// nullptr: no control plane watches the job.
  std::shared_ptr<JobWatch> watch_;
  ServerConnections servers_;
  std::vector<std::shared_ptr<void>>
      subscriptions_;                     // callbacks of watch_, which use the members above
  std::shared_ptr<WorkerGroup> workers_;  // calls watch_
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<RpcServer> rpc_;  // only on a worker; calls service_
};

}  // namespace tutti::internal
