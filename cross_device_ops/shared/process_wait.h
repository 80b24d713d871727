// Waits for changes to memory that other processes write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "core/run_token.h"
#include "tutti/core/clock.h"

namespace tutti::internal {

/// Futex word in memory that all processes map; initially zero.
struct WaitWord {
  std::atomic<std::uint32_t> word{0};
  std::atomic<std::uint32_t> sleepers{0};  // may be too high after a process was killed
};

/// Behaviour of a waiting rank in the first 200 microseconds: it polls in a loop (if every rank has
/// its own core), or yields its core between two polls.
enum class SpinPolicy { kSpin, kYield };

/// Lets threads or processes that share memory wait: polls for a while, then sleeps in the kernel
/// (futex). A short wait costs tens of nanoseconds.
class ProcessWait {
 public:
  ProcessWait(WaitWord* word, SpinPolicy policy) : word_(word), policy_(policy) {}

  /// Waits until ready() is true or the deadline has passed; returns ready(). `ready` must read
  /// atomics; its loads and the matching stores are sequentially consistent. A long wait calls
  /// `meanwhile` about every kTryAgain (20 ms). If `meanwhile` throws, the wait ends with that
  /// exception unless ready() is then true.
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
  /// Wakes sleepers. Must be called after each seq_cst store that may make a condition true.
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
