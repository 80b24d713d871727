// Log line that is written every tenth step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace tutti::examples::cifar10 {

/// Converts seconds since 1970 to local time: "2019-02-20 10:10:28.450461".
std::string local_time(double seconds);

struct StepSpeed {
  double examples_per_second = 0.0;  // of all towers together
  // duration of a step divided by the number of towers, as in the tutorial
  double seconds_per_batch = 0.0;
};

/// Computes the speed from the mean duration of a step. `batch_size` is the batch size of one
/// tower.
StepSpeed step_speed(double seconds_per_step, std::int64_t batch_size, std::size_t num_towers);

/// Returns "<local time>: step 1260, loss = 2.17 (151.4 examples/sec; 0.845 sec/batch)".
std::string step_line(double seconds, std::int64_t step, double loss, const StepSpeed& speed);

}  // namespace tutti::examples::cifar10
