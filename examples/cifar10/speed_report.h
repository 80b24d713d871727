// The speed of a training beside the one that the tutorial's log line was first published with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "examples/cifar10/step_log.h"

namespace tutti::examples::cifar10 {

/// Examples per second in the published lines: one device, batches of 128.
inline constexpr double kPublishedLowestSpeed = 151.4;
inline constexpr double kPublishedHighestSpeed = 155.7;

struct SpeedReport {
  StepSpeed speed;             // of the steps that count, on average
  std::int64_t num_steps = 0;  // that count
  /// Above 1: faster than the fastest published line.
  double times_published() const { return speed.examples_per_second / kPublishedHighestSpeed; }
};

/// What each step took, in order; the first `num_warm_up` do not count. `batch_size` is one
/// tower's. Throws kInvalidArgument when no step is left.
SpeedReport speed_report(std::span<const double> step_seconds, std::size_t num_warm_up,
                         std::int64_t batch_size, std::size_t num_towers);

/// "2102.4 examples/sec (0.061 sec/batch) in 40 steps; published: 151.4 to 155.7
/// examples/sec; 13.50 times as fast".
std::string to_string(const SpeedReport& report);

}  // namespace tutti::examples::cifar10
