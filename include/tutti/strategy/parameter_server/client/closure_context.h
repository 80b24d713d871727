// Which closure a thread works on, what its changes are numbered by and its random numbers drawn
// from, and how it fails.
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

/// Set once, by whoever ends the work; looked at by those who do it. Threads: any.
class CancellationToken {
 public:
  void cancel();
  bool is_cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }
  /// Called once, by cancel(), or now if that was called. May not block: the canceller may hold
  /// locks.
  void on_cancel(std::function<void()> told);

 private:
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::vector<std::function<void()>> told_ TUTTI_GUARDED_BY(mutex_);
};

/// The id below which closures have ended, as the coordinator last reported it to this worker.
/// Every batch of operations carries it (OperationBatch). Thread-safe.
class ClosureWatermark {
 public:
  /// Keeps the greatest id.
  void raise(std::uint64_t id);
  std::uint64_t value() const { return id_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> id_{0};
};

/// One attempt at a closure. A value; copies share watermark and token. Thread-safe.
class ClosureContext {
 public:
  /// `id`: closure_id(), the same over attempts. `attempt` counts from 1. `run`: the coordinator's
  /// random number, by which servers refuse closures of a former one.
  ClosureContext(std::uint64_t id, int attempt, int worker,
                 std::shared_ptr<const ClosureWatermark> watermark = {},
                 std::shared_ptr<const CancellationToken> token = {}, std::uint64_t run = 0);

  /// Of schedule(), from 0.
  std::uint64_t number() const;
  /// Identifies the closure to servers.
  std::uint64_t id() const { return id_; }
  std::uint64_t run() const { return run_; }
  int attempt() const { return attempt_; }
  int worker() const { return worker_; }
  /// 0 if the coordinator reported none.
  std::uint64_t finished_below() const { return watermark_ ? watermark_->value() : 0; }
  /// Whether nobody waits for the result any more: another closure failed, the coordinator stops,
  /// or the closure was given to another worker. Long steps look at it and return or throw.
  bool cancelled() const { return token_ != nullptr && token_->is_cancelled(); }
  /// Throws kCancelled when cancelled().
  void throw_if_cancelled() const;
  /// Random numbers of replica `replica` in this closure: the same in every attempt, on every
  /// worker.
  RandomContext random_context(std::uint32_t replica = 0) const;
  const std::shared_ptr<const CancellationToken>& token() const { return token_; }

  /// This thread's context; nullptr outside closures.
  static const ClosureContext* current();

 private:
  std::uint64_t id_;
  int attempt_;
  int worker_;
  std::shared_ptr<const ClosureWatermark> watermark_;
  std::shared_ptr<const CancellationToken> token_;
  std::uint64_t run_;
};

/// Makes `context` current on this thread until destroyed, and its random_context(replica) too.
/// `context` outlives it. Threads that work for a closure (replicas) each open one.
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

/// Where an error came from. Typed: nothing reads the words of a message.
enum class ErrorOrigin : std::uint8_t {
  kUser = 1,  // the step threw
  kInput,     // an argument could not be made: a per-worker resource, a dataset, a conversion
  kWorker,    // infrastructure: a worker, or the way to it
  kServer,    // infrastructure: a parameter server
};
/// "user", "input", "worker", "ps".
std::string_view to_string(ErrorOrigin origin);

/// An error that knows its origin, where that is not what the place of the throw says: what a step
/// throws counts as the user's, unless it is one of these.
class OriginError : public Error {
 public:
  OriginError(ErrorOrigin origin, ErrorCode code, std::string message)
      : Error(code, std::move(message)), origin_(origin) {}
  ErrorOrigin origin() const { return origin_; }

 private:
  ErrorOrigin origin_;
};

/// How one closure failed. A value.
struct ClosureFailure {
  std::uint64_t closure = 0;
  int attempt = 0;
  int worker = -1;
  ErrorOrigin origin = ErrorOrigin::kUser;
  ErrorCode code = ErrorCode::kInternal;
  std::string text = {};
  /// "closure 7 on worker 1, attempt 2, user error: ..."
  std::string to_string() const;
  bool operator==(const ClosureFailure&) const = default;
};

/// What schedule(), join(), done() and fetch() throw for a closure that failed. The code and the
/// message are those of the first failure; the others follow in the message, one per line.
class ClosureError : public Error {
 public:
  /// `failures`: at least one, in the order in which they came.
  explicit ClosureError(std::vector<ClosureFailure> failures);

  ErrorOrigin origin() const { return failures_.front().origin; }
  /// -1: none.
  int worker() const { return failures_.front().worker; }
  std::uint64_t closure() const { return failures_.front().closure; }
  const std::vector<ClosureFailure>& failures() const { return failures_; }

 private:
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti
