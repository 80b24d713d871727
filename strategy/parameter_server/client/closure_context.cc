// Implements ClosureContext. The current context is a thread-local pointer, which a scope sets and
// restores.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/closure_context.h"

#include <utility>

#include "strategy/parameter_server/protocol/operation.h"

namespace tutti {
namespace {

thread_local const ClosureContext* current_closure = nullptr;

/// Returns the message of an error that lists the failures, beginning with the first one.
std::string message_of(const std::vector<ClosureFailure>& failures) {
  TUTTI_CHECK(!failures.empty(), "ClosureError: expected at least one failure, got none");
  constexpr std::size_t kMostLines = 16;
  std::string message = failures.front().to_string();
  for (std::size_t i = 1; i < failures.size() && i < kMostLines; ++i) {
    message += concat("\n  also ", failures[i].to_string());
  }
  if (failures.size() > kMostLines) {
    message += concat("\n  and ", failures.size() - kMostLines, " more");
  }
  return message;
}

}  // namespace

void CancellationToken::cancel() {
  std::vector<std::function<void()>> told;
  {
    MutexLock lock(mutex_);
    if (cancelled_.exchange(true, std::memory_order_acq_rel)) return;
    told.swap(told_);
  }
  for (const auto& each : told) each();
}

void CancellationToken::on_cancel(std::function<void()> told) {
  {
    MutexLock lock(mutex_);
    if (!is_cancelled()) {
      told_.push_back(std::move(told));
      return;
    }
  }
  told();
}

void ClosureWatermark::raise(std::uint64_t id) {
  std::uint64_t known = id_.load(std::memory_order_relaxed);
  while (known < id && !id_.compare_exchange_weak(known, id, std::memory_order_acq_rel)) {
  }
}

ClosureContext::ClosureContext(std::uint64_t id, int attempt, int worker,
                               std::shared_ptr<const ClosureWatermark> watermark,
                               std::shared_ptr<const CancellationToken> token, std::uint64_t run)
    : id_(id),
      attempt_(attempt),
      worker_(worker),
      watermark_(std::move(watermark)),
      token_(std::move(token)),
      run_(run) {}

std::uint64_t ClosureContext::number() const { return internal::closure_number(id_); }

void ClosureContext::throw_if_cancelled() const {
  if (!cancelled()) return;
  fail(ErrorCode::kCancelled, "closure ", number(), " was cancelled on worker ", worker_,
       " (attempt ", attempt_, "); its result is no longer needed");
}

RandomContext ClosureContext::random_context(std::uint32_t replica) const {
  return {.seed = random_seed(), .step = number(), .replica = replica};
}

const ClosureContext* ClosureContext::current() { return current_closure; }

ClosureScope::ClosureScope(const ClosureContext& context, std::uint32_t replica)
    : previous_(std::exchange(current_closure, &context)),
      random_(context.random_context(replica)) {}

ClosureScope::~ClosureScope() { current_closure = previous_; }

std::string_view to_string(ErrorOrigin origin) {
  switch (origin) {
    case ErrorOrigin::kUser:
      return "user";
    case ErrorOrigin::kInput:
      return "input";
    case ErrorOrigin::kWorker:
      return "worker";
    case ErrorOrigin::kServer:
      return "ps";
  }
  return "unknown";
}

std::string ClosureFailure::to_string() const {
  std::string who = concat("closure ", closure);
  if (worker >= 0) who += concat(" on worker ", worker, ", attempt ", attempt);
  return concat(who, ", ", tutti::to_string(origin), " error: ", text);
}

ClosureError::ClosureError(std::vector<ClosureFailure> failures)
    : Error(failures.empty() ? ErrorCode::kInternal : failures.front().code, message_of(failures)),
      failures_(std::move(failures)) {}

}  // namespace tutti
