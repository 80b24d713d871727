// How a coordinator's steps reach the servers: what runs around a closure, and where.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tutti/strategy/parameter_server/client/parameter_servers.h"
#include "tutti/strategy/parameter_server/coordinated_job.h"
#include "tutti/strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tutti/strategy/parameter_server/coordinator/embedded_servers.h"

namespace tutti::internal {

/// Workers are the tasks of the job; without one, threads of this process. Threads: any.
class Coordination final : public CoordinatedStrategy {
 public:
  /// `embedded`: the servers, where they are of this process. `job` may be null, and outlives it.
  Coordination(std::shared_ptr<ParameterServers> servers, int num_workers,
               std::shared_ptr<EmbeddedServers> embedded, CoordinatedJob* job);

  int num_workers() const override { return num_workers_; }
  std::string worker_name(int worker) const override;
  void run_closure(const ClosureContext& closure, const std::function<void()>& body) override;
  void run_on_worker(int worker, const std::function<void()>& body) override;
  std::unique_ptr<WorkerLink> connect_worker(int worker, StepRegistry& registry) override;
  bool must_serve() const override { return job_ && !job_->is_chief(); }
  int serve(StepRegistry& registry) override;
  std::shared_ptr<void> when_over(std::function<void(const std::string& why)> told) override;
  ServerGroup* server_group() override;

 private:
  const std::shared_ptr<ParameterServers> servers_;
  const int num_workers_;
  CoordinatedJob* const job_;
  const std::shared_ptr<EmbeddedServers> embedded_;
};

}  // namespace tutti::internal
