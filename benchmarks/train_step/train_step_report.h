// What every timed program reports, and how it counts: shared by tutti's and libtorch's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/flags.h"

namespace tutti::benchmarks {

/// The flags that all programs share.
struct RunOptions {
  std::string model = "tiny";
  std::int64_t batch_size = 0;  // global; 0: the model's own
  std::int64_t replicas = 1;
  std::int64_t steps = 30;
  std::int64_t warmup = 3;
  double seconds = 20.0;  // measuring ends then, too, but not before 3 steps
  bool json = false;

  /// Declares the flags.
  void add_to(Flags& flags);
  /// Throws kInvalidArgument naming the flag that is out of range; fills in the batch size.
  void check();
};

/// The names of the models.
const std::vector<std::string>& model_names();
/// The global batch that the model is measured with.
std::int64_t default_batch_size(const std::string& model);

/// One run.
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

/// Seconds since this process was started: since TRAIN_STEP_STARTED_NS (steady clock) where the
/// environment gives it, else since the start that the kernel notes (in hundredths).
double seconds_since_start();

/// The first step, the warm-up and the timed steps.
void measure(const RunOptions& options, const std::function<void()>& step, Report& report);

/// A few lines, or one line of JSON with every step's time.
void print(const RunOptions& options, const Report& report);

}  // namespace tutti::benchmarks
