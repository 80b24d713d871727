// Spinning, yielding and sleeping for a condition made of atomics.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/spin_wait.h"

#include <thread>

namespace tutti {
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
