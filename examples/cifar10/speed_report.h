// Compares the training speed with that in the tutorial's published log.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "examples/cifar10/step_log.h"

namespace tutti::examples::cifar10 {

/// Examples per second in the published log, with one device and batches of 128.
inline constexpr double kPublishedLowestSpeed = 151.4;
inline constexpr double kPublishedHighestSpeed = 155.7;

struct SpeedReport {
  StepSpeed speed;             // mean over the measured steps
  std::int64_t num_steps = 0;  // number of measured steps
  /// Returns the speed divided by the highest published speed.
  double times_published() const { return speed.examples_per_second / kPublishedHighestSpeed; }
};

/// Computes the report from the duration of each step in seconds, without the first `num_warm_up`
/// steps. `batch_size` is the batch size of one tower. Throws kInvalidArgument if no step remains.
SpeedReport speed_report(std::span<const double> step_seconds, std::size_t num_warm_up,
                         std::int64_t batch_size, std::size_t num_towers);

/// Returns e.g. "2102.4 examples/sec (0.061 sec/batch) in 40 steps; published: 151.4 to 155.7
/// examples/sec; 13.50 times as fast".
std::string to_string(const SpeedReport& report);

}  // namespace tutti::examples::cifar10
