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

/// Counts steps and keeps losses. Part of a checkpoint, so that a resumed run reports what a
/// straight run would.
class TrainingRecord {
 public:
  explicit TrainingRecord(Clock& clock = Clock::system());

  /// One step is done: its loss and the rows of its global batch.
  void step(float loss, std::int64_t rows);
  std::int64_t steps() const { return static_cast<std::int64_t>(losses_.size()); }
  std::span<const float> losses() const { return losses_; }
  void set_accuracy(double accuracy) { accuracy_ = accuracy; }
  double examples_per_second() const;

  Json save() const;
  void restore(const Json& state);

  /// Writes --metrics-json (if it was given): one JSON object, atomically. `slots` are the
  /// optimizer's state.
  void write(const ExampleOptions& options, Strategy& strategy, std::span<const Variable> weights,
             std::span<const Variable> slots) const;

 private:
  Clock& clock_;
  TimePoint start_;
  std::optional<TimePoint> first_step_;
  TimePoint last_step_;
  std::int64_t timed_rows_ = 0;  // after the first step
  std::vector<float> losses_;
  std::optional<double> accuracy_;
};

/// A float as C's "%a" writes it: equal text, equal bits.
std::string hex_float(float value);

}  // namespace tutti::examples
