// Helpers for tests that wait: deadlines and conditions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "tutti/core/sync.h"

namespace tutti::testing {

/// Returns the time that is `duration` from now.
inline TimePoint in(Duration duration) { return deadline_after(Clock::system().now(), duration); }
/// Returns a deadline in 60 s, by which every call that does not hang has ended, even on a busy
/// machine.
inline TimePoint late() { return in(std::chrono::seconds(60)); }

/// Waits until `condition` returns true; returns false if a minute passes first.
inline bool comes_true(const std::function<bool()>& condition) {
  for (const TimePoint end = late(); !condition();) {
    if (Clock::system().now() > end) return false;
    Clock::system().sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace tutti::testing
