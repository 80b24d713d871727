// A worker that is a thread of the coordinator's process, and can die and come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/strategy/parameter_server/coordinator/task_runner.h"

namespace tutti::internal {

class EmbeddedWorker final : public WorkerLink {
 public:
  /// `strategy` and `registry` outlive it.
  EmbeddedWorker(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry);
  ~EmbeddedWorker() override;

  void start(WorkerTask task, Done done) override;
  void recall(std::uint64_t number, int attempt) override;
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override;
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;

  /// As the end of a process: what runs is lost, with all per-worker values. (A thread cannot be
  /// ended: what the step still does, the servers see as changes of an attempt that another one
  /// repeats.)
  void kill(const std::string& why = "killed");
  /// A new life, without values. Does nothing while it lives.
  void restart();

 private:
  void tell_change();

  const int worker_;
  CoordinatedStrategy& strategy_;
  const StepRegistry& registry_;
  std::atomic<bool> is_alive_{true};
  mutable Mutex mutex_;
  std::shared_ptr<TaskRunner> life_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<TaskRunner>> former_lives_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
