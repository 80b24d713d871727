// How a coordinator's steps reach the servers: what runs around a closure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tutti/strategy/parameter_server/client/parameter_servers.h"
#include "tutti/strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "tutti/strategy/parameter_server/coordinator/embedded_servers.h"
#include "tutti/strategy/parameter_server/coordinator/worker_link.h"

namespace tutti::internal {

/// Workers are threads of this process. Threads: any.
class Coordination final : public CoordinatedStrategy {
 public:
  /// `embedded`: the servers, where they are of this process.
  Coordination(std::shared_ptr<ParameterServers> servers, int num_workers,
               std::shared_ptr<EmbeddedServers> embedded = nullptr);

  int num_workers() const override { return num_workers_; }
  std::string worker_name(int worker) const override { return concat("worker ", worker); }
  void run_closure(const ClosureContext& closure, const std::function<void()>& body) override;
  void run_on_worker(int worker, const std::function<void()>& body) override;
  ServerGroup* server_group() override { return embedded_.get(); }

 private:
  const std::shared_ptr<ParameterServers> servers_;
  const int num_workers_;
  const std::shared_ptr<EmbeddedServers> embedded_;
};

}  // namespace tutti::internal
