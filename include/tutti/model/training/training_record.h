// What a run has measured: steps, losses, examples per second.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/json.h"

namespace tutti {

/// Counts steps, and keeps their losses if that is asked for: else a record has one size, however
/// many steps there were. Part of a checkpoint, so that a resumed run reports what a straight run
/// would. Used by one thread.
class TrainingRecord {
 public:
  explicit TrainingRecord(bool keeps_losses = false, Clock& clock = Clock::system());

  /// One step is done: its loss and the rows of its global batch.
  void step(float loss, std::int64_t rows);
  std::int64_t steps() const { return steps_; }
  /// Of all steps, or none; those of a run before that did not keep them are NaN.
  const std::vector<float>& losses() const { return losses_; }
  /// From the first step on; 0 before the second one.
  double examples_per_second() const;
  /// From the construction of the record; nothing before the first step.
  std::optional<double> seconds_to_first_step() const;

  Json save() const;
  void restore(const Json& state);

 private:
  bool keeps_losses_;
  Clock* clock_;
  TimePoint start_;
  std::optional<TimePoint> first_step_;
  TimePoint last_step_;
  std::int64_t timed_rows_ = 0;  // after the first step
  std::int64_t steps_ = 0;
  std::vector<float> losses_;
};

}  // namespace tutti
