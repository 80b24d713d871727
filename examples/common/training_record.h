// What a run reports: losses, speed, hashes; the metrics file of --metrics-json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "examples/common/example_options.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/clock.h"
#include "tutti/core/json.h"

namespace tutti::examples {

/// Counts steps, and keeps their losses where --metrics-json reports them: without it a record has
/// one size, however many steps there were. Part of a checkpoint, so that a resumed run reports
/// what a straight run would.
class TrainingRecord {
 public:
  explicit TrainingRecord(const ExampleOptions& options, Clock& clock = Clock::system());

  /// One step is done: its loss and the rows of its global batch.
  void step(float loss, std::int64_t rows);
  std::int64_t steps() const { return steps_; }
  void set_accuracy(double accuracy) { accuracy_ = accuracy; }
  double examples_per_second() const;

  Json save() const;
  /// Losses that the run before did not keep are NaN.
  void restore(const Json& state);

  /// Writes --metrics-json (if it was given): one JSON object, atomically. `slots` are the
  /// optimizer's state.
  void write(const ExampleOptions& options, Strategy& strategy, std::span<const Variable> weights,
             std::span<const Variable> slots) const;

 private:
  const bool keeps_losses_;
  Clock& clock_;
  TimePoint start_;
  std::optional<TimePoint> first_step_;
  TimePoint last_step_;
  std::int64_t timed_rows_ = 0;  // after the first step
  std::int64_t steps_ = 0;
  std::vector<float> losses_;  // of all steps, or none
  std::optional<double> accuracy_;
};

/// A float as C's "%a" writes it: equal text, equal bits.
std::string hex_float(float value);

}  // namespace tutti::examples
