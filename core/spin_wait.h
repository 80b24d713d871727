// Waiting for a condition that other threads make true without a mutex.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>

#include "tutti/core/clock.h"
#include "tutti/core/run_token.h"
#include "tutti/core/sync.h"

namespace tutti {

// Looking again for some microseconds before a thread goes to sleep: when it pays.

/// Whether every thread of this process that is awake, and one that the user started unless that
/// sleeps, can have a core of its own. Any thread.
bool cores_to_spare();

/// Looking again was in vain when what was waited for took longer, or when other programs wanted
/// the core: then a thread sleeps at once for the next waits, for more of them each time. One per
/// place where threads wait, and of one thread at a time.
class SpinningHabit {
 public:
  bool worth_it();
  void learn(bool was_in_vain);

 private:
  int penalty_ = 0;
  int to_skip_ = 0;
};

/// Some tens of nanoseconds in which the other thread of the core may work.
void pause_briefly();

/// How a waiting thread passes the first microseconds: looking again and again (every thread that
/// it may wait for has a core of its own), or giving its core to others between two looks.
enum class SpinPolicy { kSpin, kYield };

/// Wakes threads that wait for atomics to change. A wait that ends at once or soon costs tens of
/// nanoseconds; a longer one sleeps. Threads: any.
class SpinWait {
 public:
  explicit SpinWait(SpinPolicy policy) : policy_(policy) {}

  /// Waits until `ready()`, which reads atomics (sequentially consistent, as must be the stores
  /// that it waits for), or the deadline; returns ready(). A thread that holds a run token does not
  /// spin.
  template <class Ready>
  bool wait_until(TimePoint deadline, const Ready& ready) {
    return look(ready) || wait_long(deadline, ready);
  }
  /// After a sequentially consistent store that may have made a condition true.
  void notify() noexcept {
    if (num_sleepers_.load() > 0) wake();
  }

 private:
  // Most waits end before it pays to look at the clock or to wrap the condition up.
  template <class Ready>
  bool look(const Ready& ready) const {
    if (ready()) return true;
    if (policy_ != SpinPolicy::kSpin || BlockedScope::current_thread_holds_token()) return false;
    for (int i = 0; i < 256; ++i) {
      pause_once();
      if (ready()) return true;
    }
    return false;
  }
  static void pause_once() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
  bool wait_long(TimePoint deadline, const std::function<bool()>& ready) {
    return spin(ready) || sleep(deadline, ready);
  }
  bool spin(const std::function<bool()>& ready) const;
  bool sleep(TimePoint deadline, const std::function<bool()>& ready);
  void wake() noexcept;

  const SpinPolicy policy_;
  std::atomic<int> num_sleepers_{0};
  Mutex mutex_;
  CondVar condition_;
};

}  // namespace tutti
