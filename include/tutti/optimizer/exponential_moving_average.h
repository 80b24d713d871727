// Exponential moving averages of variables and of numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

struct ExponentialMovingAverageOptions {
  double decay = 0.9999;
  /// Suffix: the average of variable "x" is the variable "x/<name>".
  std::string name = "ExponentialMovingAverage";
};

/// Exponential moving averages: average -= (1 - decay) * (average - value). The average of a
/// variable starts at its value, has its placement and is not trainable; that of a number starts at
/// 0. Follows TensorFlow's rule at each apply(), which the caller places after the update; for
/// Keras's rule within the optimizer's step see EmaOptions. Not thread-safe; use it outside
/// replicas, except that apply() and apply_number() may also be called together by all replicas in
/// run(). tf.train.ExponentialMovingAverage.
class ExponentialMovingAverage {
 public:
  /// Throws kInvalidArgument unless decay is in [0, 1] and the name is not empty.
  explicit ExponentialMovingAverage(ExponentialMovingAverageOptions options = {});

  /// Creates the averages of variables. Requires: the strategy's scope. Throws kAlreadyExists if a
  /// variable has an average already, kInvalidArgument if it is not floating.
  void track(std::span<const Variable> variables);
  /// Same as track(), but for a number that is not a variable.
  void track_number(const std::string& name);

  /// Returns decay, or min(decay, (1 + n) / (10 + n)) if a number of updates is given, so that
  /// early averages move quickly.
  double decay_after(std::optional<std::int64_t> num_updates) const;
  /// Updates the averages of all variables, once for all replicas. In run(), throws kUnimplemented
  /// on workers that train asynchronously with parameter servers.
  void apply(std::optional<std::int64_t> num_updates = std::nullopt);
  /// Updates and returns the average of a number; in run(), of its mean over replicas.
  double apply_number(const std::string& name, double value,
                      std::optional<std::int64_t> num_updates = std::nullopt);

  /// Returns the average of this name's variable or number. Throws kNotFound listing the names.
  const Variable& average(const std::string& name) const;
  /// Returns the averages of variables, then of numbers, as saved in a checkpoint.
  std::vector<Variable> averages() const;
  /// Assigns the averages to the variables, for evaluation.
  void assign_averages();

 private:
  struct Pair {
    Variable variable;
    Variable average;
  };
  void check_is_new(const std::string& name) const;
  std::string average_name(const std::string& name) const;

  ExponentialMovingAverageOptions options_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<std::string, Variable>> numbers_;
};

}  // namespace tutti
