// This process's part in a job whose chief hands out steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/strategy/parameter_server/coordinator/worker_link.h"
#include "tutti/strategy/parameter_server/job.h"
#include "tutti/strategy/parameter_server/job_watch.h"

namespace tutti {
class CoordinatedStrategy;
}  // namespace tutti

namespace tutti::internal {

class StepRegistry;
class WorkerService;

/// The chief gives closures to the workers, servers hold the variables of both, and nobody waits
/// for a worker. One per process. Threads: any.
class CoordinatedJob {
 public:
  /// Joins the job; chief and workers wait for all servers. Throws kInvalidArgument for a cluster
  /// without chief, and as parameter_server_role(), Server, join_job() and RpcClient::connect().
  CoordinatedJob(const ClusterResolver& resolver, const WorkerGroupOptions& group,
                 ServerOptions server);
  ~CoordinatedJob();

  ParameterServerRole role() const { return role_; }
  bool is_chief() const { return role_ == ParameterServerRole::kChief; }
  const ClusterSpec& cluster() const { return cluster_; }
  const Task& task() const { return task_; }
  /// Of the chief and of workers.
  const std::vector<std::shared_ptr<VariableService>>& servers() const { return servers_; }

  JobWatch& watch() { return *watch_; }
  int num_workers() const { return cluster_.count("worker"); }
  /// "worker 1 (127.0.0.1:4711)".
  std::string worker_name(int worker) const;

  /// On the chief: the way to a worker, which may come later, and again. `registry` outlives it.
  std::unique_ptr<WorkerLink> connect_worker(int worker, const StepRegistry& registry);
  /// On workers and servers: until the chief is done or lost. Returns the exit code of this
  /// process, and logs why it is not 0. The tasks of a worker may still run.
  int serve(CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Throws kFailedPrecondition, with `what`, on a worker or server before serve(): what is changed
  /// there would be changed again by each of them, and by each that is started again.
  void require_closure_or_chief(const std::string& what) const;

 private:
  const ParameterServerRole role_;
  const ClusterSpec cluster_;
  const Task task_;
  const WorkerGroupOptions group_;
  ServerOptions options_;
  std::atomic<bool> is_serving_{false};
  std::unique_ptr<Server> server_;  // of job ps
  std::unique_ptr<JobWatch> watch_;
  std::vector<std::shared_ptr<VariableService>> servers_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<RpcServer> rpc_;  // calls the service
};

}  // namespace tutti::internal
