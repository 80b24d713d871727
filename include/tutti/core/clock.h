// Clock interface, which tests and simulators can replace with their own time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace tutti {

/// A length of time.
using Duration = std::chrono::nanoseconds;

/// Time since an arbitrary start; it never decreases.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Returns `time` + `duration`, or TimePoint::max() if the sum would overflow.
inline TimePoint deadline_after(TimePoint time, Duration duration) {
  if (duration > TimePoint::max() - time) return TimePoint::max();
  return time + duration;
}

/// Interface that returns the current time and lets threads sleep. A replica thread releases its
/// run token while it sleeps. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual void sleep_until(TimePoint time) = 0;
  void sleep_for(Duration duration) { sleep_until(deadline_after(now(), duration)); }

  /// Returns the machine's steady clock.
  static Clock& system();
};

/// Returns the seconds from `begin` to `end`.
inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Returns the steady-clock time, accurate to a few milliseconds. Takes only a few nanoseconds, so
/// it suits timestamps.
TimePoint coarse_now();

/// Returns the wall-clock time in seconds since 1970, as TensorBoard's event files store it.
double wall_time_seconds();

}  // namespace tutti
