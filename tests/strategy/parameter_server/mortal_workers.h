// Workers of tests: threads that can die and come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "strategy/parameter_server/coordinator/task_runner.h"

namespace tutti::testing {

/// Each life is a TaskRunner; the former ones stay until their last step has returned.
class MortalWorker final : public internal::WorkerLink {
 public:
  /// `strategy` and `registry` outlive it.
  MortalWorker(int worker, CoordinatedStrategy& strategy, const internal::StepRegistry& registry)
      : worker_(worker),
        strategy_(strategy),
        registry_(registry),
        life_(std::make_shared<internal::TaskRunner>(worker, strategy, registry)) {}

  void start(internal::WorkerTask task, Done done) override {
    life()->start(std::move(task), std::move(done));
  }
  void recall(std::uint64_t number, int attempt) override { life()->recall(number, attempt); }
  bool is_alive() const override { return is_alive_.load(std::memory_order_acquire); }
  void watch(std::function<void()> on_change) override {
    MutexLock lock(mutex_);
    on_change_ = std::move(on_change);
  }
  void release(const PerWorkerHandle& handle) override { life()->release(handle); }
  std::string doing() const override { return is_alive() ? life()->doing() : "dead"; }

  /// As the end of a process: what runs is lost, with all per-worker values. (A thread cannot be
  /// ended: what the step still does, the servers see as changes of an attempt that another one
  /// repeats.)
  void kill() {
    std::shared_ptr<internal::TaskRunner> life;
    {
      MutexLock lock(mutex_);
      if (!is_alive_.exchange(false)) return;
      life = life_;
    }
    life->die(ErrorCode::kUnavailable, concat(strategy_.worker_name(worker_), ": killed"));
    tell_change();
  }
  /// A new life, without values. Does nothing while it lives.
  void restart() {
    std::vector<std::shared_ptr<internal::TaskRunner>> ended;  // joined without the lock
    {
      MutexLock lock(mutex_);
      if (is_alive()) return;
      former_lives_.push_back(std::move(life_));
      life_ = std::make_shared<internal::TaskRunner>(worker_, strategy_, registry_);
      is_alive_.store(true);
      std::erase_if(former_lives_, [&](std::shared_ptr<internal::TaskRunner>& each) {
        if (!each->has_ended()) return false;
        ended.push_back(each);
        return true;
      });
    }
    tell_change();
  }

 private:
  std::shared_ptr<internal::TaskRunner> life() const {
    MutexLock lock(mutex_);
    return life_;
  }
  void tell_change() {
    std::function<void()> on_change;
    {
      MutexLock lock(mutex_);
      on_change = on_change_;
    }
    if (on_change) on_change();
  }

  const int worker_;
  CoordinatedStrategy& strategy_;
  const internal::StepRegistry& registry_;
  std::atomic<bool> is_alive_{true};
  mutable Mutex mutex_;
  std::shared_ptr<internal::TaskRunner> life_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<internal::TaskRunner>> former_lives_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
};

/// Another strategy, whose workers are threads, with workers that can die.
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

/// Of a coordinator with these.
inline MortalWorker& mortal_worker(const ClusterCoordinator& coordinator, int worker) {
  return dynamic_cast<MortalWorker&>(internal::CoordinatorInside::worker(coordinator, worker));
}

}  // namespace tutti::testing
