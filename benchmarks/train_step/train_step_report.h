// Timing and report of every timed program, shared by tutti's and libtorch's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/flags.h"

namespace tutti::benchmarks {

/// Flags that all programs share.
struct RunOptions {
  std::string model = "tiny";
  std::int64_t batch_size = 0;  // global; 0: the model's own
  std::int64_t replicas = 1;
  std::int64_t steps = 30;
  std::int64_t warmup = 3;
  double seconds = 20.0;  // measuring also ends after these, but not before 3 steps
  bool json = false;

  void add_to(Flags& flags);
  /// Throws kInvalidArgument naming a flag that is out of range; sets the default batch size.
  void check();
};

const std::vector<std::string>& model_names();
/// Returns the default global batch size of the model.
std::int64_t default_batch_size(const std::string& model);

/// Results of one run.
struct Report {
  std::string program;
  std::string variant;  // layout or strategy
  std::int64_t threads = 1;
  std::int64_t parameters = 0;
  double loss = 0.0;  // after the last step
  double first_step_seconds = 0.0;
  double cpus_used = 0.0;  // CPU time over wall time of the timed steps
  std::vector<double> step_seconds = {};
};

/// Returns the seconds since this process started: since TRAIN_STEP_STARTED_NS (steady clock) if
/// the environment sets it, else since the start time of the kernel (in hundredths).
double seconds_since_start();

/// Runs the first step, the warm-up and the timed steps.
void measure(const RunOptions& options, const std::function<void()>& step, Report& report);

/// Prints a few lines, or one line of JSON with every step's time.
void print(const RunOptions& options, const Report& report);

}  // namespace tutti::benchmarks
