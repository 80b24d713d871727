// Implements the comparison of the training speed with the published speed.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/speed_report.h"

#include <cstdio>
#include <numeric>

#include "tutti/core/error.h"

namespace tutti::examples::cifar10 {

SpeedReport speed_report(std::span<const double> step_seconds, std::size_t num_warm_up,
                         std::int64_t batch_size, std::size_t num_towers) {
  if (step_seconds.size() <= num_warm_up) {
    fail(ErrorCode::kInvalidArgument, "speed_report: expected more steps than the ", num_warm_up,
         " for warm-up, got ", step_seconds.size(), "; use a larger --steps");
  }
  const auto counted = step_seconds.subspan(num_warm_up);
  const double seconds = std::accumulate(counted.begin(), counted.end(), 0.0);
  return {step_speed(seconds / static_cast<double>(counted.size()), batch_size, num_towers),
          std::ssize(counted)};
}

std::string to_string(const SpeedReport& report) {
  char text[200];
  std::snprintf(text, sizeof text,
                "%.1f examples/sec (%.3f sec/batch) in %lld steps; published: %.1f to %.1f "
                "examples/sec; %.2f times as fast",
                report.speed.examples_per_second, report.speed.seconds_per_batch,
                static_cast<long long>(report.num_steps), kPublishedLowestSpeed,
                kPublishedHighestSpeed, report.times_published());
  return text;
}

}  // namespace tutti::examples::cifar10
