// A worker's side of the coordinator's calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/coordinator/task_runner.h"
#include "strategy/parameter_server/coordinator/worker_message.h"

namespace tutti::internal {

/// Runs the tasks of the coordinator. Those of a client whose connection ended are cancelled.
/// Thread-safe.
class WorkerService final : public RpcHandler {
 public:
  /// `strategy` and `registry` outlive it; it outlives the server that calls it.
  WorkerService(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Tasks are reported lost; waits for the one that runs.
  ~WorkerService() override;

  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override;

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // client, task

  void greet(RpcCall& call, const WorkerHello& hello);
  void run(const std::shared_ptr<RpcCall>& call, RunTask request);
  void cancel(const Key& key);
  void answer(const Key& key, RpcCall& call, const TaskOutcome& outcome);

  const int worker_;
  const StepRegistry& registry_;
  const std::shared_ptr<ClosureWatermark> watermark_ = std::make_shared<ClosureWatermark>();
  Mutex mutex_;
  std::map<Key, std::shared_ptr<CancellationToken>> tokens_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<TaskRunner> runner_;
};

}  // namespace tutti::internal
