// Interfaces of a coordinator: the strategy that it runs closures for, and its workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/protocol/operation.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti {

namespace internal {

class ServerGroup;
class StepRegistry;

/// A call of a step on a worker.
struct WorkerTask {
  /// Not a closure: its changes have no identity, and a repeated one would count twice.
  static constexpr std::uint64_t kNoClosure = ~std::uint64_t{0};

  std::uint64_t closure = kNoClosure;  // its id
  int attempt = 1;
  std::uint64_t run = 0;  // of the coordinator (StoreOrder); 0: it gives servers no orders
  std::string step = {};
  Nest arguments = {};
  std::shared_ptr<const ClosureWatermark> watermark = {};
  std::shared_ptr<CancellationToken> token = {};

  /// "closure 7 (train, attempt 2)", "step train".
  std::string name() const {
    return closure == kNoClosure ? concat("step ", step)
                                 : concat("closure ", closure_number(closure), " (", step,
                                          ", attempt ", attempt, ")");
  }
};

/// The step threw, or its arguments could not be made.
struct TaskFailure {
  ErrorOrigin origin = ErrorOrigin::kUser;
  ErrorCode code = ErrorCode::kInternal;
  std::string text = {};
};
/// The step saw its cancellation and stopped.
struct TaskStopped {};

using TaskOutcome = std::variant<Nest, TaskFailure, TaskStopped, AttemptReport>;

/// Returns the outcome of a task that its worker did not do.
inline TaskOutcome not_done(AttemptReport::Kind kind, int worker, const std::string& text,
                            ErrorCode code = ErrorCode::kUnavailable) {
  return AttemptReport{kind, worker, ErrorOrigin::kWorker, code, text};
}

/// A worker as its coordinator uses it. Thread-safe.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  /// Runs the task after those that came before it, and returns its outcome: also a report, if the
  /// worker is lost or gets lost.
  virtual TaskOutcome run(const WorkerTask& task) = 0;
  /// Makes run() return soon, now and later, if the worker is in another process.
  virtual void stop() {}
  virtual bool is_alive() const { return true; }
  /// `on_change` is called after is_alive() changed, until the link is destroyed.
  virtual void watch(std::function<void()>) {}
  /// The worker's value of this handle is not needed any more.
  virtual void release(const PerWorkerHandle& handle) = 0;
  /// Returns "closure 7 (train)", or "nothing".
  virtual std::string doing() const = 0;
  /// Returns why the worker that is there cannot be used: it defines other steps, or belongs to
  /// another job.
  virtual std::optional<Error> refusal() const { return std::nullopt; }
};

}  // namespace internal

/// Implemented by ParameterServerStrategy. The defaults are those of a strategy whose workers are
/// threads. Thread-safe.
class CoordinatedStrategy {
 public:
  virtual ~CoordinatedStrategy() = default;
  virtual int num_workers() const = 0;
  /// "worker 1 (127.0.0.1:4711)".
  virtual std::string worker_name(int worker) const { return concat("worker ", worker); }

  /// Runs `body` on the calling thread, which belongs to the closure's worker and has its
  /// ClosureScope: reads and writes go to the servers in the closure's name. Returns when every
  /// server has confirmed every change: only then does the closure count as finished. Failures of
  /// servers and of the way to them come out as OriginError.
  virtual void run_closure(const std::function<void()>& body) = 0;

  /// How to reach a worker; nullptr: it is a thread of this process.
  virtual std::unique_ptr<internal::WorkerLink> connect_worker(int, internal::StepRegistry&) {
    return nullptr;
  }
  /// Returns true if this task is a worker or a server of a chief elsewhere.
  virtual bool must_serve() const { return false; }
  /// There: serves until the chief is done or lost; the exit code for this process.
  virtual int serve(internal::StepRegistry&) { return 0; }

  /// On the chief: calls `told`, from any thread, when the job has given this coordinator up, as
  /// long as the returned object lives. No call outlives that.
  [[nodiscard]] virtual std::shared_ptr<void> when_over(
      std::function<void(const std::string& why)>) {
    return nullptr;
  }
  /// Its servers, which outlive the coordinator; nullptr: it has none that can be saved.
  virtual internal::ServerGroup* server_group() { return nullptr; }

  /// Where coordinators of this strategy find each other: there is one per strategy.
  struct CoordinatorSlot {
    Mutex mutex;
    std::weak_ptr<void> coordinator TUTTI_GUARDED_BY(mutex);
    /// Where the next coordinator begins to count: servers remember closures of the former ones.
    std::uint64_t next_number TUTTI_GUARDED_BY(mutex) = 0;
    std::uint64_t next_generation TUTTI_GUARDED_BY(mutex) = 1;
  };
  CoordinatorSlot& coordinator_slot() { return slot_; }

 private:
  CoordinatorSlot slot_;
};

}  // namespace tutti
