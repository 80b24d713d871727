// Progress display of an epoch: one line, updated in place on a terminal and otherwise printed once
// at the end of the epoch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tutti/core/clock.h"

namespace tutti {

/// Output of fit() and evaluate(), numbered as in Keras. kProgress: on a terminal, writes the
/// epoch's number and a line of values that is rewritten during the epoch; on other outputs, writes
/// one line at the end of each epoch. Also writes the TimeSplit. kLinePerEpoch: writes one line at
/// the end of each epoch, without the TimeSplit.
enum class Verbosity { kSilent = 0, kProgress = 1, kLinePerEpoch = 2 };

/// Time spent in an epoch, in seconds. input_wait is measured on the thread that calls run();
/// compute and communication are means over the replicas.
struct TimeSplit {
  double compute = 0.0;
  double communication = 0.0;
  double input_wait = 0.0;
};

/// Names and values to show, for example {{"loss", 0.41}, {"accuracy", 0.87}}.
using LogValues = std::span<const std::pair<std::string, double>>;

/// Displays steps, values, examples per second, remaining time, and the percentages of computation,
/// communication and waiting for input. On a terminal, the line is never wider than the terminal;
/// if space is short, the rate, the bar and the last values are omitted. Not thread-safe.
class Progress {
 public:
  /// `out` is not owned. `verbosity` must not be kSilent.
  explicit Progress(std::FILE* out = stdout, Clock& clock = Clock::system(),
                    Verbosity verbosity = Verbosity::kProgress);

  /// `num_steps`: number of steps in the epoch, if known.
  void begin_epoch(std::int64_t epoch, std::int64_t num_epochs,
                   std::optional<std::int64_t> num_steps);
  /// Reports that `step` steps of the epoch are done, and that `examples` rows have been processed
  /// since the last call.
  void step(std::int64_t step, std::int64_t examples, LogValues values);
  /// Returns true if a call to step() at this moment would display its values.
  bool due() const;
  void end_epoch(LogValues values, const TimeSplit& split);
  /// Returns the mean rate from the start of the epoch to its last step.
  double examples_per_second() const;

 private:
  std::string fitted_line(std::int64_t step, LogValues values) const;
  std::string split_text(const TimeSplit& split) const;

  std::FILE* out_;
  Clock& clock_;
  bool shows_split_;
  bool is_rewritten_;  // true on a terminal, where each epoch's line is rewritten in place
  std::string title_;  // "epoch 1/10"
  std::optional<std::int64_t> num_steps_;
  TimePoint begin_;
  TimePoint last_step_time_;
  TimePoint last_shown_;
  std::int64_t last_step_ = 0;
  std::int64_t examples_ = 0;
};

/// Formats a duration: "2.1 s", "3:25", "1:02:07".
std::string duration_text(double seconds);
/// Formats a loss, metric or rate: "0.8750", "1e-05", "nan".
std::string value_text(double value);

}  // namespace tutti
