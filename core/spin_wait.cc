// When a thread may look again instead of going to sleep, and for how long.
// SPDX-License-Identifier: Apache-2.0
#include "core/spin_wait.h"

#include <algorithm>
#include <atomic>

#include "tutti/core/executor.h"

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

}  // namespace tutti
