// A worker that runs a coordinator's tasks in this process or in another one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

namespace tutti::internal {

/// Per-worker values of one worker. A failed creation is not retried in the same process: each use
/// throws the error. Thread-safe, but only one thread may call find().
class WorkerResourceTable final : public WorkerResources {
 public:
  WorkerResourceTable(int worker, const StepRegistry& registry)
      : worker_(worker), registry_(registry) {}
  std::shared_ptr<void> find(const PerWorkerHandle& handle) override;
  void release(const PerWorkerHandle& handle);

 private:
  struct Made {
    std::shared_ptr<void> value = {};
    std::optional<OriginError> error = {};
  };
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  Made make(const PerWorkerHandle& handle);

  const int worker_;
  const StepRegistry& registry_;
  Mutex mutex_;
  std::map<Key, Made> made_ TUTTI_GUARDED_BY(mutex_);
};

/// Runs a worker's tasks one at a time, on the threads that call it. Thread-safe.
class TaskRunner final : public WorkerLink {
 public:
  /// `strategy` and `registry` must outlive this object.
  TaskRunner(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry)
      : worker_(worker), strategy_(strategy), registry_(registry), resources_(worker, registry) {}

  TaskOutcome run(const WorkerTask& task) override;
  void release(const PerWorkerHandle& handle) override { resources_.release(handle); }
  std::string doing() const override;

 private:
  TaskOutcome outcome_of(const WorkerTask& task);

  const int worker_;
  CoordinatedStrategy& strategy_;
  const StepRegistry& registry_;
  WorkerResourceTable resources_;
  mutable Mutex mutex_;
  CondVar ended_;
  std::string running_ TUTTI_GUARDED_BY(mutex_);  // WorkerTask::name(); empty: none
  TimePoint running_since_ TUTTI_GUARDED_BY(mutex_) = {};
};

/// Runs the coordinator's tasks in order, on a dedicated thread. If a client's connection ends,
/// that client's tasks are cancelled. Thread-safe.
class WorkerService final : public RpcHandler {
 public:
  /// `strategy` and `registry` must outlive the service.
  WorkerService(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// Cancels all tasks and waits until the running one ends. Requires: the server that calls this
  /// handler has ended.
  ~WorkerService() override;

  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override;

 private:
  struct Asked {
    std::shared_ptr<RpcCall> call = {};
    std::uint64_t number = 0;  // RunTask.task
    WorkerTask task = {};
  };

  void cancel(std::uint64_t client, std::optional<std::uint64_t> number);
  void work();

  const int worker_;
  const StepRegistry& registry_;
  const std::shared_ptr<ClosureWatermark> watermark_ = std::make_shared<ClosureWatermark>();
  TaskRunner runner_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Asked> asked_ TUTTI_GUARDED_BY(mutex_);  // requested tasks; the first one is running
  bool is_ending_ TUTTI_GUARDED_BY(mutex_) = false;
  Event ended_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
