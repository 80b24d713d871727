// The closure that a thread runs: its identity, random numbers, cancellation and errors.
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

/// Flag that is set once to cancel work and checked by the threads that do it. Thread-safe.
class CancellationToken {
 public:
  void cancel();
  bool is_cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }
  /// Registers a callback that runs once, in cancel(), or immediately if already cancelled. It must
  /// not block: the canceller may hold locks.
  void on_cancel(std::function<void()> told);

 private:
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::vector<std::function<void()>> told_ TUTTI_GUARDED_BY(mutex_);
};

/// Id below which all closures have ended, as the coordinator last reported it to this worker.
/// Every OperationBatch carries it. Thread-safe.
class ClosureWatermark {
 public:
  /// Sets the id to the maximum of `id` and its value.
  void raise(std::uint64_t id);
  std::uint64_t value() const { return id_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> id_{0};
};

/// One attempt at a closure. Value type; copies share watermark and token. Thread-safe.
class ClosureContext {
 public:
  /// `id`: closure_id(), equal in all attempts. `attempt` counts from 1. `run`: random number of
  /// the coordinator; servers refuse closures with another one.
  ClosureContext(std::uint64_t id, int attempt, int worker,
                 std::shared_ptr<const ClosureWatermark> watermark = {},
                 std::shared_ptr<const CancellationToken> token = {}, std::uint64_t run = 0);

  /// Returns the number of the closure in the order of schedule(), from 0.
  std::uint64_t number() const;
  /// Returns the number that identifies the closure to servers.
  std::uint64_t id() const { return id_; }
  std::uint64_t run() const { return run_; }
  int attempt() const { return attempt_; }
  int worker() const { return worker_; }
  /// Returns the value of the watermark; 0 if the coordinator has reported none.
  std::uint64_t finished_below() const { return watermark_ ? watermark_->value() : 0; }
  /// Returns true if the result is not needed any more: another closure failed, the coordinator
  /// stops, or another worker got the closure. Long steps check this and return or throw.
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
/// must outlive it. Each thread that works for a closure (a replica) opens its own.
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

/// Origin of an error, so that callers need not parse messages.
enum class ErrorOrigin : std::uint8_t {
  kUser = 1,  // thrown by the step
  kInput,     // an argument could not be made: a per-worker resource, a dataset, a conversion
  kWorker,    // infrastructure: a worker, or the connection to it
  kServer,    // infrastructure: a parameter server
};
/// Returns "user", "input", "worker" or "ps".
std::string_view to_string(ErrorOrigin origin);

/// Error with an explicit origin. Any other error that a step throws has the origin kUser.
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

/// Error of closures that failed, thrown by schedule(), join(), done() and fetch(). Its code and
/// message are those of the first failure; the message lists the others, one per line.
class ClosureError : public Error {
 public:
  /// `failures`: at least one, in the order in which they occurred.
  explicit ClosureError(std::vector<ClosureFailure> failures);

  ErrorOrigin origin() const { return failures_.front().origin; }
  /// Returns -1 if there was no worker.
  int worker() const { return failures_.front().worker; }
  std::uint64_t closure() const { return failures_.front().closure; }
  const std::vector<ClosureFailure>& failures() const { return failures_; }

 private:
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti
