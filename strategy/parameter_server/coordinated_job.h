// This process's part in a job whose chief hands out steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/strategy/parameter_server/coordinator/worker_link.h"
#include "tutti/strategy/parameter_server/durability.h"
#include "tutti/strategy/parameter_server/job.h"
#include "tutti/strategy/parameter_server/job_watch.h"

namespace tutti {
class CoordinatedStrategy;
}  // namespace tutti

namespace tutti::internal {

class DurableHandler;
class RemoteServers;
class StepRegistry;
class WorkerService;

/// The chief gives closures to the workers, servers hold the variables of both, and nobody waits
/// for a worker. One per process. Threads: any.
class CoordinatedJob {
 public:
  /// Joins the job; chief and workers wait for all servers. Throws kInvalidArgument for a cluster
  /// without chief, and as parameter_server_role(), Server, join_job() and
  /// RpcClient::connect().
  CoordinatedJob(const ClusterResolver& resolver, const WorkerGroupOptions& group,
                 ServerOptions server, Durability durability = Durability::kNone);
  ~CoordinatedJob();

  ParameterServerRole role() const { return role_; }
  bool is_chief() const { return role_ == ParameterServerRole::kChief; }
  const ClusterSpec& cluster() const { return cluster_; }
  const Task& task() const { return task_; }
  /// Of the chief and of workers.
  std::vector<std::shared_ptr<VariableService>> servers() const { return servers_.services(); }

  /// Of the chief, where the job outlives its servers; else nullptr.
  RemoteServers* server_group() const { return server_group_.get(); }

  JobWatch& watch() { return *watch_; }
  int num_workers() const { return cluster_.count("worker"); }
  /// "worker 1 (127.0.0.1:4711)".
  std::string worker_name(int worker) const;

  /// On the chief: the way to a worker, which may come later, and again. `registry` outlives it.
  std::unique_ptr<WorkerLink> connect_worker(int worker, const StepRegistry& registry);
  /// On workers and servers: until the chief is done or lost, and the closure that a worker is in
  /// has ended, which its calls of servers do not hold up. Returns the exit code of this process,
  /// and logs why it is not 0.
  int serve(CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Throws kFailedPrecondition, with `what`, on a worker or server before serve(): what is changed
  /// there would be changed again by each of them, and by each that is started again.
  void require_closure_or_chief(const std::string& what) const;

 private:
  const ParameterServerRole role_;
  const ClusterSpec cluster_;
  const Task task_;
  void serve_variables();
  void meet_servers();

  const WorkerGroupOptions group_;
  ServerOptions options_;
  const Durability durability_;
  std::atomic<bool> is_serving_{false};
  std::unique_ptr<Server> server_;  // of job ps, which ends with its variables
  std::unique_ptr<JobWatch> watch_;
  std::unique_ptr<RemoteServers> server_group_;
  ServerConnections servers_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<DurableHandler> variables_;  // of job ps, which outlive it
  std::unique_ptr<RpcServer> rpc_;             // calls one of these two
};

}  // namespace tutti::internal
