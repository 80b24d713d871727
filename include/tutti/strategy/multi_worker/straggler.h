// A worker that the others wait for, and when it is told of.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti {

struct StragglerOptions {
  /// A worker for which the others wait at least this part of the time is named in a warning of the
  /// chief; above 1: none is.
  double share = 0.4;
  /// The next warning comes so many steps later at the earliest.
  std::int64_t repeat_after_steps = 500;
};

/// A worker that is slower than the others.
struct Straggler {
  int worker = 0;
  double share = 0.0;  // of the time by this worker's clock, that the others waited for it
  double seconds_per_step = 0.0;  // that they waited
  std::int64_t step = 0;          // sums of gradients so far
};

}  // namespace tutti
