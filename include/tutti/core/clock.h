// Time, behind an interface: a test or a simulator supplies its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace tutti {

/// A length of time.
using Duration = std::chrono::nanoseconds;

/// Time since an arbitrary start that never goes back.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// `time` + `duration`, stopping at TimePoint::max() instead of overflowing.
inline TimePoint deadline_after(TimePoint time, Duration duration) {
  if (duration > TimePoint::max() - time) return TimePoint::max();
  return time + duration;
}

/// Tells and waits for time. A waiting replica hands its run token on. Threads: all functions, any
/// thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual void sleep_until(TimePoint time) = 0;
  void sleep_for(Duration duration) { sleep_until(deadline_after(now(), duration)); }

  /// The machine's steady clock.
  static Clock& system();
};

/// Seconds from `begin` to `end`.
inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// The steady clock to a few milliseconds, in a few nanoseconds: for records of what happened when.
TimePoint coarse_now();

/// Wall-clock time in seconds since 1970 (what TensorBoard event files want).
double wall_time_seconds();

}  // namespace tutti
