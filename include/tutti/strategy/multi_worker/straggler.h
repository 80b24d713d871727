// Options for detecting slow workers, and reports about them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti {

struct StragglerOptions {
  /// The chief logs a warning if the other workers spend at least this fraction of the time waiting
  /// for one worker. A value above 1 disables the warnings.
  double share = 0.4;
  /// Minimum number of steps between two warnings.
  std::int64_t repeat_after_steps = 500;
};

/// A worker that is slower than the other workers.
struct Straggler {
  int worker = 0;
  double share = 0.0;             // fraction of the time that the others spent waiting for it
  double seconds_per_step = 0.0;  // time per step that the others spent waiting for it
  std::int64_t step = 0;          // number of gradient sums up to the measurement
};

}  // namespace tutti
