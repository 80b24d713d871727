// Interfaces used by a coordinator: the strategy for which it runs closures, and its workers.
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

/// One attempt at a closure on a worker.
struct WorkerTask {
  std::uint64_t closure = 0;  // id of the closure
  int attempt = 1;
  std::uint64_t run = 0;  // StoreOrder::run of the coordinator; 0: it sends no orders
  std::string step = {};
  Nest arguments = {};
  std::shared_ptr<const ClosureWatermark> watermark = {};
  std::shared_ptr<CancellationToken> token = {};

  /// Returns "closure 7 (train, attempt 2)".
  std::string name() const {
    return concat("closure ", closure_number(closure), " (", step, ", attempt ", attempt, ")");
  }
};

/// Result of the step, or the reason why there is none.
using TaskOutcome = std::variant<Nest, AttemptReport>;

/// Coordinator's interface to one worker. Thread-safe.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  /// Runs the task after all earlier ones have ended, and returns its outcome.
  virtual TaskOutcome run(const WorkerTask& task) = 0;
  /// Makes pending and later calls to run() return promptly, if the worker is in another process.
  virtual void stop() {}
  virtual bool is_alive() const { return true; }
  /// Calls `on_change` after each change of is_alive(), until the link is destroyed.
  virtual void watch(std::function<void()>) {}
  /// Releases the worker's value for this handle.
  virtual void release(const PerWorkerHandle& handle) = 0;
  /// Describes what the worker is running, such as "closure 7 (train, attempt 2)" or "nothing".
  virtual std::string doing() const = 0;
  /// Returns the reason why a connected worker cannot be used, such as different step definitions
  /// or membership in another job.
  virtual std::optional<Error> refusal() const { return std::nullopt; }
};

}  // namespace internal

/// Interface of a strategy for its coordinator, implemented by ParameterServerStrategy. The default
/// implementations suit workers that are threads of this process. Thread-safe.
class CoordinatedStrategy {
 public:
  virtual ~CoordinatedStrategy() = default;
  virtual int num_workers() const = 0;
  /// Returns a string such as "worker 1 (127.0.0.1:4711)".
  virtual std::string worker_name(int worker) const { return concat("worker ", worker); }

  /// Runs `body` on the calling thread, which belongs to the closure's worker and has its
  /// ClosureScope: reads and changes are sent on behalf of the closure. Returns when every server
  /// has confirmed every change, because the closure counts as finished only then. Throws server
  /// and connection failures as OriginError.
  virtual void run_closure(const std::function<void()>& body) = 0;

  /// Returns a link to a worker; nullptr if the worker is a thread of this process.
  virtual std::unique_ptr<internal::WorkerLink> connect_worker(int, internal::StepRegistry&) {
    return nullptr;
  }
  /// Returns true if this task is a worker or a server whose chief is another process.
  virtual bool must_serve() const { return false; }
  /// If must_serve(): serves until the chief is done or lost, and returns this process's exit code.
  virtual int serve(internal::StepRegistry&) { return 0; }

  /// On the chief: calls the given function, on any thread, if the job declares this coordinator
  /// lost while the returned object exists. The object's destructor waits for a running call.
  [[nodiscard]] virtual std::shared_ptr<void> when_over(
      std::function<void(const std::string& why)>) {
    return nullptr;
  }
  /// Returns the strategy's servers, which outlive the coordinator; nullptr if it has none that can
  /// be saved.
  virtual internal::ServerGroup* server_group() { return nullptr; }

  /// State shared by the coordinators of this strategy, only one of which exists at a time.
  struct CoordinatorSlot {
    Mutex mutex;
    std::weak_ptr<void> coordinator TUTTI_GUARDED_BY(mutex);
    /// First number and generation of the next coordinator. They are not reused, because servers
    /// remember closures of earlier coordinators.
    std::uint64_t next_number TUTTI_GUARDED_BY(mutex) = 0;
    std::uint64_t next_generation TUTTI_GUARDED_BY(mutex) = 1;
  };
  CoordinatorSlot& coordinator_slot() { return slot_; }

 private:
  CoordinatorSlot slot_;
};

}  // namespace tutti
