// Server and worker for clients written in other languages. Prints the addresses of the server and
// the worker, the id of the shard of variable "w", and the number of operation "add". Exits when
// its standard input ends.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/coordinator/worker_service.h"
#include "strategy/parameter_server/protocol/operation.h"
#include "tutti/strategy/parameter_server/session/server.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/ops/elementwise.h"

namespace {

class OneWorker final : public tutti::CoordinatedStrategy {
 public:
  int num_workers() const override { return 1; }
  void run_closure(const std::function<void()>& body) override { body(); }
};

}  // namespace

int main() {
  using namespace tutti;
  const auto server = Server::create_local_server();
  OneWorker strategy;
  internal::StepRegistry registry;
  registry.define("double", [](const Tensor& x) { return x + x; });
  internal::WorkerService service(0, strategy, registry);
  const auto worker = RpcServer::start({.self = {"worker", 0, ""}}, {{RpcMethod::kRun, &service}});
  std::cout << "server=" << server->target() << " worker=" << worker->target()
            << " shard=" << internal::shard_id("w", 0) << " add=" << static_cast<int>(OpId::kAdd)
            << std::endl;
  while (std::getchar() != EOF) {
  }
  return 0;
}
