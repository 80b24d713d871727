// Waits for memory that other processes write: spins or yields, then sleeps.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/process_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(200);

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value,
           const timespec* timeout) {
  static_assert(sizeof(*word) == 4);
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout,
                   nullptr, 0);
}

}  // namespace

bool ProcessWait::spin(TimePoint deadline, const std::function<bool()>& ready) const {
  if (BlockedScope::current_thread_holds_token()) return false;
  Clock& clock = Clock::system();
  const TimePoint end = std::min(deadline, deadline_after(clock.now(), kSpin));
  do {
    if (policy_ == SpinPolicy::kYield) {
      // The awaited process may be waiting for this core.
      ::sched_yield();
      if (ready()) return true;
      continue;
    }
    for (int i = 0; i < 64; ++i) {
      pause_once();
      if (ready()) return true;
    }
  } while (clock.now() < end);
  return false;
}

// No wake-up is lost: a writer stores before it checks for sleepers, and a sleeper registers before
// its last check.
void ProcessWait::sleep_once(TimePoint deadline, const std::function<bool()>& ready) {
  const Duration left =
      std::min(durations::kTryAgain, std::max(deadline - Clock::system().now(), Duration(0)));
  const BlockedScope blocked;
  const AsleepScope asleep;
  word_->sleepers.fetch_add(1);
  const std::uint32_t seen = word_->word.load();
  if (!ready()) {
    timespec time{};
    time.tv_nsec = static_cast<long>(left.count());
    futex(&word_->word, FUTEX_WAIT, seen, &time);
  }
  word_->sleepers.fetch_sub(1);
}

bool ProcessWait::wait_long(TimePoint deadline, const std::function<bool()>& ready,
                            const std::function<void()>& meanwhile) {
  if (spin(deadline, ready)) return true;
  Clock& clock = Clock::system();
  TimePoint ask_at = deadline_after(clock.now(), durations::kTryAgain);
  for (;;) {
    const TimePoint now = clock.now();
    if (now >= std::min(ask_at, deadline)) {
      try {
        meanwhile();
      } catch (...) {
        if (ready()) return true;
        throw;
      }
      ask_at = deadline_after(clock.now(), durations::kTryAgain);
    }
    if (ready()) return true;
    if (now >= deadline) return false;
    sleep_once(deadline, ready);
    if (ready()) return true;
  }
}

void ProcessWait::wake() noexcept {
  word_->word.fetch_add(1);
  futex(&word_->word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace tutti::internal
