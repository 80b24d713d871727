// Context of the closure that a thread runs: its identity, random numbers, cancellation and errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"

namespace tutti {

/// Flag that requests cancellation of work; the working threads check it. Cannot be reset.
/// Thread-safe.
class CancellationToken {
 public:
  void cancel();
  bool is_cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }
  /// Registers a callback that runs once: in cancel(), or immediately if already cancelled. The
  /// callback must not block, because the caller of cancel() may hold locks.
  void on_cancel(std::function<void()> told);

 private:
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::vector<std::function<void()>> told_ TUTTI_GUARDED_BY(mutex_);
};

/// Id below which all closures have ended, as last reported to this worker by the coordinator.
/// Every OperationBatch includes it. Thread-safe.
class ClosureWatermark {
 public:
  /// Raises the watermark to `id` if the watermark is lower.
  void raise(std::uint64_t id);
  std::uint64_t value() const { return id_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> id_{0};
};

/// One attempt at running a closure. Value type; copies share the watermark and the token.
/// Thread-safe.
class ClosureContext {
 public:
  /// `id`: closure_id(), equal in all attempts. `attempt` counts from 1. `run`: random number that
  /// identifies the coordinator; servers refuse closures with a different one.
  ClosureContext(std::uint64_t id, int attempt, int worker,
                 std::shared_ptr<const ClosureWatermark> watermark = {},
                 std::shared_ptr<const CancellationToken> token = {}, std::uint64_t run = 0);

  /// Returns the index of the closure in the order of schedule() calls, from 0.
  std::uint64_t number() const;
  /// Returns the number that identifies the closure to servers.
  std::uint64_t id() const { return id_; }
  std::uint64_t run() const { return run_; }
  int attempt() const { return attempt_; }
  int worker() const { return worker_; }
  /// Returns the value of the watermark; 0 if the coordinator has reported none.
  std::uint64_t finished_below() const { return watermark_ ? watermark_->value() : 0; }
  /// Returns true if the result is no longer needed, because another closure failed, the
  /// coordinator is stopping, or the closure was reassigned to another worker. Long-running
  /// functions should check this and then return or throw.
  bool cancelled() const { return token_ != nullptr && token_->is_cancelled(); }
  /// Throws kCancelled if cancelled().
  void throw_if_cancelled() const;
  /// Returns the random context of replica `replica`, which is the same in every attempt and on
  /// every worker.
  RandomContext random_context(std::uint32_t replica = 0) const;
  const std::shared_ptr<const CancellationToken>& token() const { return token_; }

  /// Returns the calling thread's context; nullptr outside closures.
  static const ClosureContext* current();

 private:
  std::uint64_t id_;
  int attempt_;
  int worker_;
  std::shared_ptr<const ClosureWatermark> watermark_;
  std::shared_ptr<const CancellationToken> token_;
  std::uint64_t run_;
};

/// Scope that makes `context` and its random_context(replica) current on this thread. `context`
/// must outlive the scope. Each thread that works for a closure (one per replica) opens its own
/// scope.
class ClosureScope {
 public:
  explicit ClosureScope(const ClosureContext& context, std::uint32_t replica = 0);
  ~ClosureScope();
  ClosureScope(const ClosureScope&) = delete;
  ClosureScope& operator=(const ClosureScope&) = delete;

 private:
  const ClosureContext* const previous_;
  RandomContextScope random_;
};

/// Origin of an error, which callers can check without parsing messages.
enum class ErrorOrigin : std::uint8_t {
  kUser = 1,  // error thrown by the step
  kInput,     // an argument (per-worker value, dataset) could not be created or converted
  kWorker,    // a worker, or the connection to it, failed
  kServer,    // a parameter server failed
};
/// Returns "user", "input", "worker" or "ps".
std::string_view to_string(ErrorOrigin origin);

/// Error with an explicit origin. All other errors that a step throws have the origin kUser.
class OriginError : public Error {
 public:
  OriginError(ErrorOrigin origin, ErrorCode code, std::string message)
      : Error(code, std::move(message)), origin_(origin) {}
  ErrorOrigin origin() const { return origin_; }

 private:
  ErrorOrigin origin_;
};

/// Failure of one closure. Value type.
struct ClosureFailure {
  std::uint64_t closure = 0;
  int attempt = 0;
  int worker = -1;
  ErrorOrigin origin = ErrorOrigin::kUser;
  ErrorCode code = ErrorCode::kInternal;
  std::string text = {};
  /// Returns "closure 7 on worker 1, attempt 2, user error: ...".
  std::string to_string() const;
  bool operator==(const ClosureFailure&) const = default;
};

/// Error for one or more failed closures, thrown by schedule(), join(), done() and fetch(). Has the
/// code of the first failure. The message lists the failures, at most 16 of them, one per line.
class ClosureError : public Error {
 public:
  /// `failures`: at least one, in the order in which they occurred.
  explicit ClosureError(std::vector<ClosureFailure> failures);

  ErrorOrigin origin() const { return failures_.front().origin; }
  /// Returns the worker of the first failure; -1 if the closure had no worker.
  int worker() const { return failures_.front().worker; }
  std::uint64_t closure() const { return failures_.front().closure; }
  const std::vector<ClosureFailure>& failures() const { return failures_; }

 private:
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti
