// Steps of closures: a variable is read once, changes are in the closure's name, all are confirmed.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordination.h"

#include <utility>

#include "tutti/strategy/parameter_server/coordinator/remote_servers.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {

Coordination::Coordination(std::shared_ptr<ParameterServers> servers, int num_workers,
                           std::shared_ptr<EmbeddedServers> embedded, CoordinatedJob* job)
    : servers_(std::move(servers)),
      num_workers_(job ? job->num_workers() : num_workers),
      job_(job),
      embedded_(std::move(embedded)) {
  const auto begin_anew = [servers = servers_] { servers->begin_anew(); };
  if (embedded_) embedded_->when_loaded(begin_anew);
  if (job_ && job_->server_group()) job_->server_group()->when_loaded(begin_anew);
}

ServerGroup* Coordination::server_group() {
  if (job_) return job_->server_group();
  return embedded_.get();
}

void Coordination::run_closure(const ClosureContext&, const std::function<void()>& body) {
  struct Step {
    explicit Step(ParameterServers& servers) : servers(servers) { servers.begin_step(); }
    ~Step() {
      servers.end_stream();
      servers.end_step();
    }
    ParameterServers& servers;
  };
  const Step step(*servers_);
  ForbiddenVariableCreator forbidden;
  const VariableCreatorScope creator(forbidden);
  body();
  servers_->settle();
}

std::string Coordination::worker_name(int worker) const {
  return job_ ? job_->worker_name(worker) : concat("worker ", worker);
}

std::unique_ptr<WorkerLink> Coordination::connect_worker(int worker, StepRegistry& registry) {
  return job_ ? job_->connect_worker(worker, registry) : nullptr;
}

int Coordination::serve(StepRegistry& registry) { return job_->serve(*this, registry); }

std::shared_ptr<void> Coordination::when_over(std::function<void(const std::string&)> told) {
  return job_ ? job_->watch().when_over(std::move(told)) : nullptr;
}

/// Outside every scope variables are local to this process already.
void Coordination::run_on_worker(int, const std::function<void()>& body) { body(); }

}  // namespace tutti::internal
