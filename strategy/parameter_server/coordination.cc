// Steps of closures: a variable is read once, changes are in the closure's name, all are confirmed.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordination.h"

#include <utility>

#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {

Coordination::Coordination(std::shared_ptr<ParameterServers> servers, int num_workers,
                           std::shared_ptr<EmbeddedServers> embedded)
    : servers_(std::move(servers)), num_workers_(num_workers), embedded_(std::move(embedded)) {
  if (embedded_) embedded_->when_back([servers = servers_] { servers->begin_anew(); });
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

/// Outside every scope variables are local to this process already.
void Coordination::run_on_worker(int, const std::function<void()>& body) { body(); }

}  // namespace tutti::internal
