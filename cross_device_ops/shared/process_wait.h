// Waiting for memory that other processes write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "core/run_token.h"
#include "tutti/core/clock.h"

namespace tutti::internal {

/// Lies in memory that all processes map; zeros at first.
struct WaitWord {
  std::atomic<std::uint32_t> word{0};
  std::atomic<std::uint32_t> sleepers{0};  // too high after a sleeper was killed: wakes in vain
};

/// How a waiting rank passes the first microseconds: looking again and again (every rank has a core
/// of its own), or giving its core to others between two looks.
enum class SpinPolicy { kSpin, kYield };

/// Of the ranks on one memory, threads or processes: looks again for a while, then sleeps in the
/// system (futex). A wait that ends at once or soon costs tens of nanoseconds.
class ProcessWait {
 public:
  ProcessWait(WaitWord* word, SpinPolicy policy) : word_(word), policy_(policy) {}

  /// Waits until `ready()`, which reads atomics (sequentially consistent, as must be the stores
  /// that it waits for), or the deadline; returns ready(). A wait that takes long calls `meanwhile`
  /// about every 10 ms; what that throws ends the wait, unless ready() by then.
  template <class Ready, class Meanwhile>
  bool wait_until(TimePoint deadline, const Ready& ready, const Meanwhile& meanwhile) {
    if (ready()) return true;
    if (policy_ == SpinPolicy::kSpin && !BlockedScope::current_thread_holds_token()) {
      for (int i = 0; i < 512; ++i) {
        pause_once();
        if (ready()) return true;
      }
    }
    return wait_long(deadline, ready, meanwhile);
  }
  /// After a sequentially consistent store that may have made a condition true.
  void notify() noexcept {
    if (word_->sleepers.load() > 0) wake();
  }

 private:
  static void pause_once() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
  bool wait_long(TimePoint deadline, const std::function<bool()>& ready,
                 const std::function<void()>& meanwhile);
  bool spin(TimePoint deadline, const std::function<bool()>& ready) const;
  void sleep_once(TimePoint deadline, const std::function<bool()>& ready);
  void wake() noexcept;

  WaitWord* word_;
  SpinPolicy policy_;
};

}  // namespace tutti::internal
