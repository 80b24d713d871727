// A worker's side of the coordinator's calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/coordinator/task_runner.h"
#include "strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Runs the tasks of the coordinator in their order, on a thread of its own. Those of a client
/// whose connection ended are cancelled. Thread-safe.
class WorkerService final : public RpcHandler {
 public:
  /// `strategy` and `registry` outlive it.
  WorkerService(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Cancels the task that runs and waits for it. Requires: the server that calls it has ended.
  ~WorkerService() override;

  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override;

 private:
  struct Asked {
    std::shared_ptr<RpcCall> call = {};
    std::uint64_t number = 0;  // RunTask::call
    WorkerTask task = {};
  };

  void greet(RpcCall& call, const WorkerHello& hello);
  void cancel(std::uint64_t client, std::optional<std::uint64_t> number);
  void work();

  const int worker_;
  const StepRegistry& registry_;
  const std::shared_ptr<ClosureWatermark> watermark_ = std::make_shared<ClosureWatermark>();
  TaskRunner runner_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Asked> asked_ TUTTI_GUARDED_BY(mutex_);  // the first one runs
  bool is_ending_ TUTTI_GUARDED_BY(mutex_) = false;
  Event ended_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
