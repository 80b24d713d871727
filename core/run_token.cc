// The run token: a ticket lock, so that the replicas of a device run in the order they asked.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/run_token.h"

#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace {

thread_local RunToken* current_token = nullptr;

}  // namespace

void RunToken::acquire() {
  std::unique_lock lock(mutex_);
  const unsigned long ticket = next_ticket_++;
  const AsleepScope asleep;
  condition_.wait(lock, [&] { return serving_ == ticket; });
}

void RunToken::release() {
  {
    std::lock_guard lock(mutex_);
    ++serving_;
  }
  // Everyone looks whether it is their turn: a handful of replicas share a device.
  condition_.notify_all();
}

unsigned long RunToken::num_waiting() const {
  std::lock_guard lock(mutex_);
  return next_ticket_ > serving_ + 1 ? next_ticket_ - serving_ - 1 : 0;
}

RunTokenHolder::RunTokenHolder(RunToken* token) : previous_(current_token) {
  if (token == nullptr || token == previous_) return;
  TUTTI_CHECK(previous_ == nullptr, "this thread already holds the run token of another device");
  token->acquire();
  current_token = token;
}

RunTokenHolder::~RunTokenHolder() {
  if (current_token == previous_) return;
  current_token->release();
  current_token = previous_;
}

BlockedScope::BlockedScope() : token_(current_token) {
  if (token_ == nullptr) return;
  current_token = nullptr;
  token_->release();
}

BlockedScope::~BlockedScope() {
  if (token_ == nullptr) return;
  token_->acquire();
  current_token = token_;
}

bool BlockedScope::current_thread_holds_token() { return current_token != nullptr; }

}  // namespace tutti
