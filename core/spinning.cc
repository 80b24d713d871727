// When a thread may look again instead of going to sleep, and for how long.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/spinning.h"

#include <algorithm>
#include <atomic>

#include "tutti/core/executor.h"
#include "tutti/core/run_token.h"

namespace tutti {

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

bool spin_for(Duration longest, SpinningHabit& habit, const std::function<bool()>& ready) {
  if (ready()) return true;
  if (!cores_to_spare() || BlockedScope::current_thread_holds_token() || !habit.worth_it()) {
    return false;
  }
  const TimePoint end = deadline_after(Clock::system().now(), longest);
  bool is_ready = false;
  do {
    pause_briefly();
    is_ready = ready();
  } while (!is_ready && cores_to_spare() && Clock::system().now() < end);
  habit.learn(!is_ready);
  return is_ready;
}

}  // namespace tutti
