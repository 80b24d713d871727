// Waiting for a condition, and the order in which a waiting thread releases its token and mutex.
// SPDX-License-Identifier: Apache-2.0
//
// A thread releases its run token, then waits, which releases the mutex and acquires it on waking.
// It then drops the mutex to acquire the token, and acquires the mutex again: no thread waits for a
// token while holding a mutex, so there is no deadlock. Meanwhile the condition may have become
// false again, hence the second check.
#include "tutti/core/sync.h"

#include <algorithm>

#include "core/run_token.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace {

using MutexHold = std::unique_lock<std::mutex>;

/// Polls for up to kSpin. Waking a sleeping thread takes tens of microseconds, so polling is
/// cheaper if the awaited thread has a core of its own.
bool spin_until(MutexHold& hold, const std::atomic<unsigned>& notifications, TimePoint deadline,
                const std::function<bool()>& ready) {
  constexpr Duration kSpin = std::chrono::microseconds(200);
  const TimePoint end = std::min(deadline, deadline_after(Clock::system().now(), kSpin));
  for (;;) {
    const unsigned seen = notifications.load(std::memory_order_acquire);
    hold.unlock();
    bool in_time = true;
    while (in_time && notifications.load(std::memory_order_acquire) == seen) {
      pause_briefly();
      in_time = cores_to_spare() && Clock::system().now() < end;
    }
    hold.lock();
    if (ready()) return true;
    if (!in_time) return false;
  }
}

bool sleep_until(std::condition_variable& condition, MutexHold& hold,
                 const std::atomic<unsigned>& notifications, TimePoint deadline,
                 const std::function<bool()>& ready) {
  thread_local SpinPredictor predictor;
  if (cores_to_spare() && predictor.should_spin()) {
    const bool is_ready = spin_until(hold, notifications, deadline, ready);
    predictor.record(!is_ready);
    if (is_ready) return true;
  }
  const AsleepScope asleep;
  return condition.wait_until(hold, deadline, ready);
}

/// Scope without the run token. At its end, the token and the mutex are reacquired in the required
/// order, even if ready() throws.
class WithoutToken {
 public:
  explicit WithoutToken(MutexHold& hold) : hold_(hold) { blocked_.emplace(); }
  ~WithoutToken() {
    hold_.unlock();
    blocked_.reset();
    hold_.lock();
  }
  WithoutToken& operator=(WithoutToken&&) = delete;

 private:
  MutexHold& hold_;
  std::optional<BlockedScope> blocked_;
};

bool sleep_without_token(std::condition_variable& condition, MutexHold& hold, TimePoint deadline,
                         const std::function<bool()>& ready) {
  for (;;) {
    bool was_ready;
    {
      WithoutToken without_token(hold);
      const AsleepScope asleep;
      was_ready = condition.wait_until(hold, deadline, ready);
    }
    if (ready()) return true;
    if (!was_ready) return false;
  }
}

}  // namespace

bool CondVar::wait_until(Mutex& mutex, TimePoint deadline, const std::function<bool()>& ready)
    TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis) {
  if (ready()) return true;
  // Borrows the caller's lock: the mutex stays locked when this function returns.
  struct Borrowed {
    explicit Borrowed(std::mutex& mutex) : hold(mutex, std::adopt_lock) {}
    ~Borrowed() { hold.release(); }
    MutexHold hold;
  } borrowed(mutex.mutex_);
  if (BlockedScope::current_thread_holds_token()) {
    return sleep_without_token(condition_, borrowed.hold, deadline, ready);
  }
  return sleep_until(condition_, borrowed.hold, notifications_, deadline, ready);
}

void Event::set() {
  // Notify under the lock: a waiter may destroy the event as soon as it sees that the event has
  // happened.
  MutexLock lock(mutex_);
  set_ = true;
  condition_.notify_all();
}

bool Event::is_set() const {
  MutexLock lock(mutex_);
  return set_;
}

bool Event::wait_until(TimePoint deadline) {
  MutexLock lock(mutex_);
  return condition_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) { return set_; });
}

// The run token is a ticket lock: the replicas on a device run in request order.

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
  // Wakes all waiting threads, so that each checks its ticket. This is cheap, because only a few
  // replicas share a device.
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

// Spinning, for threads that poll before they sleep.

bool cores_to_spare() {
  static const int cores = num_hardware_threads();
  return num_awake_threads() + (user_thread_sleeps() ? 0 : 1) <= cores;
}

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#else
  for (int i = 0; i < 64; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

bool SpinPredictor::should_spin() { return to_skip_ == 0 || --to_skip_ == 0; }

void SpinPredictor::record(bool was_in_vain) {
  penalty_ = was_in_vain ? std::min(2 * penalty_ + 8, 512) : penalty_ / 2;
  if (was_in_vain) to_skip_ = penalty_;
}

}  // namespace tutti
