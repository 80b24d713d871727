// Tasks of a worker, and the interface by which the coordinator runs them.
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
#include "tutti/strategy/parameter_server/client/closure_context.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

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

}  // namespace tutti::internal
