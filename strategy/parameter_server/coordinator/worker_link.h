// The way from the coordinator to one worker.
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
  /// Not a closure: its changes are not told apart from repeated ones.
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

/// Of a task that its worker did not do.
inline TaskOutcome not_done(AttemptReport::Kind kind, int worker, const std::string& text,
                            ErrorCode code = ErrorCode::kUnavailable) {
  return AttemptReport{kind, worker, ErrorOrigin::kWorker, code, text};
}

/// Threads: any, all functions.
class WorkerLink {
 public:
  using Done = std::function<void(TaskOutcome)>;

  /// No `done` runs after it, and it ends soon: steps see their cancellation.
  virtual ~WorkerLink() = default;
  /// Returns at once; tasks of a worker run in this order, one at a time. `done` is called once,
  /// from any thread: also, with a report, when the worker is or gets lost.
  virtual void start(WorkerTask task, Done done) = 0;
  /// Asks for a task that has not begun: then its `done` gets a report that says so. Else nothing
  /// happens.
  virtual void recall(std::uint64_t closure, int attempt) = 0;
  virtual bool is_alive() const = 0;
  /// `on_change` is called after is_alive() changed, until the link is destroyed.
  virtual void watch(std::function<void()> on_change) = 0;
  /// The worker's value of this handle is not needed any more, once the tasks that it has are done.
  virtual void release(const PerWorkerHandle& handle) = 0;
  /// "closure 7 (train) for 3.2 s", or "nothing".
  virtual std::string doing() const = 0;
  /// Why the worker that is there cannot be used: it defines other steps, or belongs to another
  /// job.
  virtual std::optional<Error> refusal() const { return std::nullopt; }
};

}  // namespace tutti::internal
