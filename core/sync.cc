// Waiting for a condition, and the order in which a waiting thread lets go of its token and mutex.
// SPDX-License-Identifier: Apache-2.0
//
// A thread that holds a run token waits in this order: token handed on, mutex dropped while asleep;
// then mutex dropped, token taken, mutex taken. Nobody ever waits for a token while holding a
// mutex, so the two cannot lock each other out. What was ready may be gone by then, hence the
// second look.
#include "tutti/core/sync.h"

#include <algorithm>

#include "tutti/core/executor.h"
#include "tutti/core/run_token.h"

namespace tutti {
namespace {

using MutexHold = std::unique_lock<std::mutex>;

/// Whether every thread that is awake, and one that the user started, can have a core of its own.
bool cores_to_spare() {
  static const int cores = num_hardware_threads();
  return num_awake_threads() + 1 <= cores;
}

/// A sleeping thread costs tens of microseconds to wake. Looking again for about that long is
/// cheaper, but only where the thread waited for has a core of its own.
bool spin_until(MutexHold& hold, TimePoint deadline, const std::function<bool()>& ready) {
  constexpr Duration kSpin = std::chrono::microseconds(50);
  const TimePoint begin = Clock::system().now();
  const TimePoint end = std::min(deadline, deadline_after(begin, kSpin));
  while (cores_to_spare() && Clock::system().now() < end) {
    hold.unlock();
    for (int i = 0; i < 32; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    hold.lock();
    if (ready()) return true;
  }
  return false;
}

bool sleep_until(std::condition_variable& condition, MutexHold& hold, TimePoint deadline,
                 const std::function<bool()>& ready) {
  if (spin_until(hold, deadline, ready)) return true;
  const AsleepScope asleep;
  return condition.wait_until(hold, deadline, ready);
}

/// Restores token and mutex in the right order, also when ready() throws.
class WithoutToken {
 public:
  explicit WithoutToken(MutexHold& hold) : hold_(hold) { blocked_.emplace(); }
  ~WithoutToken() {
    hold_.unlock();
    blocked_.reset();
    hold_.lock();
  }
  WithoutToken(const WithoutToken&) = delete;
  WithoutToken& operator=(const WithoutToken&) = delete;

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
  // The caller's lock is borrowed, and stays locked when this function ends.
  struct Borrowed {
    explicit Borrowed(std::mutex& mutex) : hold(mutex, std::adopt_lock) {}
    ~Borrowed() { hold.release(); }
    MutexHold hold;
  } borrowed(mutex.mutex_);
  if (BlockedScope::current_thread_holds_token()) {
    return sleep_without_token(condition_, borrowed.hold, deadline, ready);
  }
  return sleep_until(condition_, borrowed.hold, deadline, ready);
}

void Event::set() {
  // Notified under the lock: a waiter may destroy the event as soon as it sees that it happened.
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

}  // namespace tutti
