// Spinning, yielding and sleeping for a condition made of atomics.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/spin_wait.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tutti/core/executor.h"
#include "tutti/core/run_token.h"

namespace tutti {

// When a thread may look again instead of going to sleep, and for how long.

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

bool SpinningHabit::worth_it() { return to_skip_ == 0 || --to_skip_ == 0; }

void SpinningHabit::learn(bool was_in_vain) {
  penalty_ = was_in_vain ? std::min(2 * penalty_ + 8, 512) : penalty_ / 2;
  if (was_in_vain) to_skip_ = penalty_;
}

namespace {

constexpr Duration kSpin = std::chrono::microseconds(200);
constexpr Duration kYield = std::chrono::microseconds(100);

bool spin_politely(const std::function<bool()>& ready) {
  const TimePoint end = Clock::system().now() + kYield;
  do {
    std::this_thread::yield();
    if (ready()) return true;
  } while (Clock::system().now() < end);
  return false;
}

}  // namespace

bool SpinWait::spin(const std::function<bool()>& ready) const {
  if (BlockedScope::current_thread_holds_token()) return false;
  if (policy_ == SpinPolicy::kYield) return spin_politely(ready);
  const TimePoint end = Clock::system().now() + kSpin;
  do {
    if (look(ready)) return true;
  } while (Clock::system().now() < end);
  return false;
}

bool SpinWait::sleep(TimePoint deadline, const std::function<bool()>& ready) {
  num_sleepers_.fetch_add(1);
  MutexLock lock(mutex_);
  const bool was_ready = condition_.wait_until(mutex_, deadline, ready);
  num_sleepers_.fetch_sub(1);
  return was_ready;
}

void SpinWait::wake() noexcept {
  // Between the sleeper's look at the condition and its sleep the mutex is held.
  MutexLock lock(mutex_);
  condition_.notify_all();
}

}  // namespace tutti
