// The value that a callback watches, and what is better.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "tutti/model/logs.h"

namespace tutti {

class Model;

/// Whether smaller or larger values are better. kAuto: as the compiled metric of this name says
/// (Model::metric_direction()); "loss" is smaller. For other names kAuto is refused.
enum class MonitorMode { kAuto, kMin, kMax };

namespace internal {

/// A value of the logs, and its comparison with the best one so far.
class Monitor {
 public:
  /// Before there is a best value: every number is better.
  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

  /// `who`: the callback, for messages; a literal.
  Monitor(const char* who, std::string name, MonitorMode mode)
      : who_(who), name_(std::move(name)), mode_(mode) {}

  /// Throws kInvalidArgument when mode is kAuto and the model knows no direction of the name.
  bool larger_is_better(const Model& model) const;
  /// Whether `value` is better than `best` by more than `min_delta`. What is not a number is not
  /// better than anything.
  bool is_better(const Model& model, double value, double best, double min_delta = 0.0) const;
  /// The value in the logs; without it nothing, and a warning (once) that lists the names.
  std::optional<double> value(const Logs& logs) const;

 private:
  const char* who_;
  std::string name_;
  MonitorMode mode_;
};

}  // namespace internal
}  // namespace tutti
