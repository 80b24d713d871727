// Options and reports of slow workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tutti {

struct StragglerOptions {
  /// A worker is reported if the others wait for it at least this fraction of the time; the chief
  /// logs a warning. Above 1: never.
  double share = 0.4;
  /// Minimum number of steps between two warnings.
  std::int64_t repeat_after_steps = 500;
};

/// A worker that is slower than the others.
struct Straggler {
  int worker = 0;
  double share = 0.0;             // fraction of the time that the others waited for this worker
  double seconds_per_step = 0.0;  // seconds per step that the others waited
  std::int64_t step = 0;          // number of gradient sums so far
};

}  // namespace tutti
