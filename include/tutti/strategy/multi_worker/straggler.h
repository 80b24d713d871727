// Slow workers: options for detecting them, and reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti {

struct StragglerOptions {
  /// The chief logs a warning if the other workers spend at least this fraction of the time waiting
  /// for one worker. Above 1: no warnings.
  double share = 0.4;
  /// Minimum number of steps between two warnings.
  std::int64_t repeat_after_steps = 500;
};

/// A worker that is slower than the other workers.
struct Straggler {
  int worker = 0;
  double share = 0.0;             // fraction of time that the other workers waited for this one
  double seconds_per_step = 0.0;  // time that the other workers waited for it, per step
  std::int64_t step = 0;          // number of gradient sums at the time of the measurement
};

}  // namespace tutti
