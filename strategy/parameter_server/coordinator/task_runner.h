// Runs the tasks of one life of a worker on a thread: what a worker does, in any process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "strategy/parameter_server/coordinator/worker_link.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

namespace tutti::internal {

/// What one worker has made of the definitions. A creation that failed is not tried again in the
/// same life: each use gets the error. Threads: any; find() from one.
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

/// Also the link to a worker that is a thread of the coordinator's process.
class TaskRunner final : public WorkerLink {
 public:
  /// `strategy` and `registry` outlive it.
  TaskRunner(int worker, CoordinatedStrategy& strategy, const StepRegistry& registry);
  /// die(), then waits for the task that runs.
  ~TaskRunner() override;

  void start(WorkerTask task, Done done) override;
  void recall(std::uint64_t closure, int attempt) override;
  bool is_alive() const override { return true; }
  void watch(std::function<void()>) override {}
  /// As a process that ends: the task that runs is reported lost with `text`, those that wait as
  /// not started, and what the thread still does counts for nothing.
  void die(ErrorCode code, const std::string& text);
  void release(const PerWorkerHandle& handle) override;
  std::string doing() const override;
  /// Whether its thread works for nobody any more and has ended.
  bool has_ended() const;
  /// Whether the calling thread is that of one: in a closure, or a step of run_on_each().
  static bool runs_this_thread();

 private:
  struct Given {
    WorkerTask task;
    Done done;
  };
  void run();
  TaskOutcome outcome_of(const WorkerTask& task);

  const int worker_;
  CoordinatedStrategy& strategy_;
  const StepRegistry& registry_;
  WorkerResourceTable resources_;
  mutable Mutex mutex_;
  CondVar condition_;
  std::deque<Given> waiting_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Given> running_ TUTTI_GUARDED_BY(mutex_);
  TimePoint running_since_ TUTTI_GUARDED_BY(mutex_) = {};
  std::deque<PerWorkerHandle> to_release_ TUTTI_GUARDED_BY(mutex_);
  bool is_dead_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
