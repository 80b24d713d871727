// The machine's clocks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/clock.h"

#include <ctime>
#include <thread>

#include "tutti/core/run_token.h"

namespace tutti {
namespace {

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }

  void sleep_until(TimePoint time) override {
    if (time <= now()) return;
    BlockedScope blocked;
    std::this_thread::sleep_until(time);
  }
};

}  // namespace

Clock& Clock::system() {
  static SystemClock clock;
  return clock;
}

TimePoint coarse_now() {
#if defined(CLOCK_MONOTONIC_COARSE)
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return TimePoint(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
#else
  return Clock::system().now();
#endif
}

double wall_time_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tutti
