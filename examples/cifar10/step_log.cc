// Implements the line that is logged every tenth step, in the tutorial's format.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/step_log.h"

#include <cmath>
#include <cstdio>
#include <ctime>

namespace tutti::examples::cifar10 {

std::string local_time(double seconds) {
  const double whole = std::floor(seconds);
  const auto time = static_cast<std::time_t>(whole);
  std::tm parts{};
  localtime_r(&time, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &parts);
  char text[48];
  std::snprintf(text, sizeof text, "%s.%06d", date, static_cast<int>((seconds - whole) * 1e6));
  return text;
}

StepSpeed step_speed(double seconds_per_step, std::int64_t batch_size, std::size_t num_towers) {
  const auto towers = static_cast<double>(num_towers);
  return {static_cast<double>(batch_size) * towers / seconds_per_step, seconds_per_step / towers};
}

std::string step_line(double seconds, std::int64_t step, double loss, const StepSpeed& speed) {
  char text[160];
  std::snprintf(text, sizeof text, "%s: step %lld, loss = %.2f (%.1f examples/sec; %.3f sec/batch)",
                local_time(seconds).c_str(), static_cast<long long>(step), loss,
                speed.examples_per_second, speed.seconds_per_batch);
  return text;
}

}  // namespace tutti::examples::cifar10
