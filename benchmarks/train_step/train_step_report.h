// Timing and reporting shared by the tutti and libtorch programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/flags.h"

namespace tutti::benchmarks {

/// Flags of train_step and libtorch_train_step.
struct RunOptions {
  std::string model = "tiny";
  std::int64_t batch_size = 0;  // global batch size; 0: the model's default
  std::int64_t replicas = 1;
  std::int64_t steps = 30;
  std::int64_t warmup = 3;
  double seconds = 20.0;  // time limit; at least 3 steps are measured
  bool json = false;

  void add_to(Flags& flags);
  /// Sets the default batch size. Throws kInvalidArgument, naming the flag, if a value is out of
  /// range.
  void check();
};

const std::vector<std::string>& model_names();
/// Returns the default global batch size of the model.
std::int64_t default_batch_size(const std::string& model);

/// Results of one run.
struct Report {
  std::string program;
  std::string variant;  // memory layout (torch) or strategy (tutti)
  std::int64_t threads = 1;
  std::int64_t parameters = 0;
  double loss = 0.0;  // loss of the last step
  double first_step_seconds = 0.0;
  double cpus_used = 0.0;  // CPU time divided by wall time, over the timed steps
  std::vector<double> step_seconds = {};
};

/// Returns the seconds since this process started. The start is TRAIN_STEP_STARTED_NS (steady
/// clock) if the environment contains it, else the kernel's start time, in hundredths of a second.
double seconds_since_start();

/// Runs the first step, the warm-up steps and the timed steps.
void measure(const RunOptions& options, const std::function<void()>& step, Report& report);

/// Prints a few lines, or one line of JSON with the time of each step.
void print(const RunOptions& options, const Report& report);

}  // namespace tutti::benchmarks
