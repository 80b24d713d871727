// Moving averages of variables and of numbers, kept beside them.
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
  /// The average of variable "x" is the variable "x/<name>".
  std::string name = "ExponentialMovingAverage";
};

/// Averages: average -= (1 - decay) * (average - value). The average of a variable begins at its
/// value, lives where the variable does and is no trainable variable; that of a number begins at 0.
/// The optimizers' EmaOptions keep one by Keras's rule within the step; this one goes by
/// TensorFlow's, when apply() is called: after the update, so that the order is the caller's. One
/// thread, outside replicas; apply() and apply_number() also within run(), where all replicas call
/// them together. tf.train.ExponentialMovingAverage.
class ExponentialMovingAverage {
 public:
  /// Throws kInvalidArgument unless decay is in [0, 1] and the name is not empty.
  explicit ExponentialMovingAverage(ExponentialMovingAverageOptions options = {});

  /// Makes the averages of variables; in the strategy's scope. Throws kAlreadyExists for one that
  /// has its average, kInvalidArgument for one that is not floating.
  void track(std::span<const Variable> variables);
  /// Makes the average of a number that is no variable; likewise.
  void track_number(const std::string& name);

  /// decay, or with a number of updates min(decay, (1 + n) / (10 + n)): so that early averages move
  /// quickly.
  double decay_after(std::optional<std::int64_t> num_updates) const;
  /// Moves the averages of all variables, once for all replicas. Within run() workers of parameter
  /// servers that train apart refuse it (kUnimplemented).
  void apply(std::optional<std::int64_t> num_updates = std::nullopt);
  /// Moves the average of a number, and gives it. Within run(): of the mean over replicas.
  double apply_number(const std::string& name, double value,
                      std::optional<std::int64_t> num_updates = std::nullopt);

  /// The average of the variable or number of this name. Throws kNotFound listing the names.
  const Variable& average(const std::string& name) const;
  /// Averages of variables, then of numbers: what a checkpoint holds.
  std::vector<Variable> averages() const;
  /// Variables become their averages: for evaluation.
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
