// Workers for tests: threads that can simulate death and restart.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "strategy/parameter_server/coordinator/worker_service.h"
#include "tutti/core/executor.h"

namespace tutti::testing {

/// Worker that runs each task on a separate thread. After kill(), run() does not wait for the task.
class MortalWorker final : public internal::WorkerLink {
 public:
  /// Requires: `strategy` and `registry` outlive this object.
  MortalWorker(int worker, CoordinatedStrategy& strategy, const internal::StepRegistry& registry)
      : worker_(worker),
        strategy_(strategy),
        registry_(registry),
        life_(std::make_shared<internal::TaskRunner>(worker, strategy, registry)) {}

  internal::TaskOutcome run(const internal::WorkerTask& task) override {
    const auto outcome = std::make_shared<std::optional<internal::TaskOutcome>>();
    MutexLock lock(mutex_);
    const auto life = life_;
    if (!is_alive_) {
      return internal::AttemptReport{
          .kind = internal::AttemptReport::Kind::kNotStarted, .worker = worker_, .text = "is dead"};
    }
    threads_.push_back(Executor::system().start("mortal-worker", [this, life, task, outcome] {
      internal::TaskOutcome ended = life->run(task);
      MutexLock own(mutex_);
      *outcome = std::move(ended);
      changed_.notify_all();
    }));
    changed_.wait_until(mutex_, TimePoint::max(), [&, this]() TUTTI_REQUIRES(mutex_) {
      return outcome->has_value() || life_ != life || !is_alive_;
    });
    if (life_ == life && is_alive_) return **outcome;
    task.token->cancel();
    return internal::AttemptReport{.worker = worker_,
                                   .text = concat(strategy_.worker_name(worker_), ": killed")};
  }
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override {
    MutexLock lock(mutex_);
    on_change_ = std::move(on_change);
  }
  void release(const PerWorkerHandle& handle) override { life()->release(handle); }
  std::string doing() const override { return is_alive() ? life()->doing() : "dead"; }

  /// Simulates the death of a process: running tasks and all per-worker values are lost. The
  /// threads continue, so servers may still receive changes from the lost tasks, even after another
  /// worker has run them again.
  void kill() {
    if (is_alive_.exchange(false)) report_change();
  }
  /// Restarts a dead worker without its earlier values. Does nothing if the worker is alive.
  void restart() {
    {
      MutexLock lock(mutex_);
      if (is_alive()) return;
      life_ = std::make_shared<internal::TaskRunner>(worker_, strategy_, registry_);
      is_alive_.store(true);
    }
    report_change();
  }

 private:
  std::shared_ptr<internal::TaskRunner> life() const {
    MutexLock lock(mutex_);
    return life_;
  }
  void report_change() {
    std::function<void()> on_change;
    {
      MutexLock lock(mutex_);
      on_change = on_change_;
      changed_.notify_all();
    }
    if (on_change) on_change();
  }

  const int worker_;
  CoordinatedStrategy& strategy_;
  const internal::StepRegistry& registry_;
  std::atomic<bool> is_alive_{true};
  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<internal::TaskRunner> life_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Thread>> threads_ TUTTI_GUARDED_BY(mutex_);
};

/// Strategy that wraps a strategy whose workers are threads, and makes these workers killable.
class MortalWorkers final : public CoordinatedStrategy {
 public:
  explicit MortalWorkers(CoordinatedStrategy& strategy) : strategy_(strategy) {}
  int num_workers() const override { return strategy_.num_workers(); }
  void run_closure(const std::function<void()>& body) override { strategy_.run_closure(body); }
  internal::ServerGroup* server_group() override { return strategy_.server_group(); }
  std::unique_ptr<internal::WorkerLink> connect_worker(int worker,
                                                       internal::StepRegistry& registry) override {
    return std::make_unique<MortalWorker>(worker, *this, registry);
  }

 private:
  CoordinatedStrategy& strategy_;
};

/// Returns a worker of a coordinator whose strategy is MortalWorkers.
inline MortalWorker& mortal_worker(const ClusterCoordinator& coordinator, int worker) {
  return dynamic_cast<MortalWorker&>(internal::CoordinatorTestAccess::worker(coordinator, worker));
}

}  // namespace tutti::testing
