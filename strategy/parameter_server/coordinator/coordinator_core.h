// Implementation of a strategy's single coordinator: its queue, its workers, and the threads that
// run closures on the workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "strategy/parameter_server/coordinator/job_checkpoint.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti {

/// Thread that checks a count every timeout / 10. If it has not changed for `timeout`, the watchdog
/// logs the stacks of all threads and the work in progress, and restarts the interval.
class Watchdog {
 public:
  /// `count` returns the number of finished closures. Both functions are called on the watchdog's
  /// thread. A timeout <= 0 disables the watchdog.
  Watchdog(Duration timeout, std::function<std::uint64_t()> count,
           std::function<std::string()> describe);
  ~Watchdog();
  bool has_thread() const { return thread_ != nullptr; }

 private:
  void run();

  const Duration timeout_;
  const std::function<std::uint64_t()> count_;
  const std::function<std::string()> describe_;
  Event stop_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti

namespace tutti::internal {

class CoordinatorCore;

/// Pointer to a coordinator for the handles of its per-worker values; null once the coordinator has
/// ended, because handles may outlive it.
struct ReleaseRegistry {
  Mutex mutex;
  CoordinatorCore* core TUTTI_GUARDED_BY(mutex) = nullptr;
};

/// Implementation of ClusterCoordinator. Thread-safe.
class CoordinatorCore {
 public:
  /// `first_number` and `generation` are those of the first closure (ClosureLedger).
  CoordinatorCore(CoordinatedStrategy& strategy, ClusterCoordinatorOptions options,
                  std::uint64_t first_number = 0, std::uint64_t generation = 1);
  /// Saves a final version of the checkpoint if possible, cancels remaining closures, and ends all
  /// threads.
  ~CoordinatorCore();

  std::optional<int> serve();
  void start();
  bool has_started() const { return has_started_.load(std::memory_order_acquire); }
  RemoteValue schedule(std::string_view step, Nest arguments);
  PerWorkerHandle new_handle(std::uint64_t id, std::string type);
  std::string describe() const;
  void release(const PerWorkerHandle& handle);
  void save_checkpoint(TimePoint deadline);

  StepRegistry& registry() { return registry_; }
  ClosureQueue& queue() { return queue_; }
  CoordinatedStrategy& strategy() { return strategy_; }
  WorkerLink& link(int worker) const;
  bool has_remote_workers() const { return has_remote_workers_; }

 private:
  void await_workers();
  bool may_take(int worker) const;
  void start_threads();
  void end_threads();
  void work(int worker);
  void accept_outcome(const ClosureQueue::AssignedClosure& assigned, TaskOutcome outcome);
  void stop_after_error(const std::string& where, const std::exception& error);
  void fail_if_no_worker_joins(TimePoint& absent_since);
  void require_started(const char* who) const;
  void watch_servers();

  CoordinatedStrategy& strategy_;
  const ClusterCoordinatorOptions options_;
  const std::uint64_t run_;  // result of ServerGroup::run(); 0: there is no group
  StepRegistry registry_;
  ClosureQueue queue_;
  std::atomic<std::uint64_t> next_instance_{0};
  const std::shared_ptr<ReleaseRegistry> release_registry_ = std::make_shared<ReleaseRegistry>();
  std::atomic<bool> is_starting_{false}, has_started_{false};
  bool has_remote_workers_ = false;
  Event stop_;
  // The following members are set by start() and constant afterwards.
  std::unique_ptr<JobCheckpoint> checkpoint_;  // nullptr: no checkpoint is kept
  std::vector<std::unique_ptr<WorkerLink>> links_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::atomic<std::size_t> num_working_{0};  // number of threads_ that have not ended
  std::unique_ptr<Watchdog> watchdog_;
  std::shared_ptr<void> over_;
};

/// Access for tests.
struct CoordinatorTestAccess {
  static ClosureQueue& closures(const ClusterCoordinator& coordinator) {
    return coordinator.core_->queue();
  }
  static WorkerLink& worker(const ClusterCoordinator& coordinator, int index) {
    return coordinator.core_->link(index);
  }
};

}  // namespace tutti::internal
