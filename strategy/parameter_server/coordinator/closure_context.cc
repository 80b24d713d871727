// The closure of a thread is a thread-local pointer that a scope sets and puts back.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/closure_context.h"

#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

thread_local const ClosureContext* current_closure = nullptr;

void raise_to(std::atomic<std::uint64_t>& value, std::uint64_t at_least) noexcept {
  std::uint64_t seen = value.load(std::memory_order_relaxed);
  while (seen < at_least &&
         !value.compare_exchange_weak(seen, at_least, std::memory_order_acq_rel)) {
  }
}

}  // namespace

void CoordinatorNews::hear(std::uint64_t new_term, std::uint64_t new_finished_below) noexcept {
  raise_to(term, new_term);
  raise_to(finished_below, new_finished_below);
}

ClosureContext::ClosureContext(std::uint64_t number, int attempt, int worker, std::uint64_t term,
                               std::shared_ptr<const CoordinatorNews> news,
                               std::shared_ptr<const CancellationToken> token)
    : number_(number),
      attempt_(attempt),
      worker_(worker),
      term_(term),
      news_(std::move(news)),
      token_(std::move(token)) {}

std::uint64_t ClosureContext::finished_below() const {
  return news_ == nullptr ? 0 : news_->finished_below.load(std::memory_order_acquire);
}

void ClosureContext::throw_if_cancelled() const {
  if (!cancelled()) return;
  fail(ErrorCode::kCancelled, "closure ", number_, ": was cancelled on worker ", worker_,
       " (attempt ", attempt_, "); nobody waits for its result");
}

RandomContext ClosureContext::random_context(std::uint32_t replica) const {
  return {.seed = random_seed(), .step = number_, .replica = replica};
}

const ClosureContext* ClosureContext::current() { return current_closure; }

ClosureScope::ClosureScope(const ClosureContext& context, std::uint32_t replica)
    : previous_(std::exchange(current_closure, &context)),
      random_(context.random_context(replica)) {}

ClosureScope::~ClosureScope() { current_closure = previous_; }

}  // namespace tutti
