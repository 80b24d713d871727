// Exponential moving averages of variables and of tracked numbers.
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
  /// Suffix of the averages' names: the average of variable "x" is the variable "x/<name>".
  std::string name = "ExponentialMovingAverage";
};

/// Exponential moving averages: average -= (1 - decay) * (average - value). The average of a
/// variable starts at the variable's value, has the same placement and is not trainable; the
/// average of a number starts at 0. apply() follows TensorFlow's rule and must be called after each
/// update; for Keras's rule, which is part of the optimizer's step, see EmaOptions. Not
/// thread-safe. Use it outside replicas; only apply() and apply_number() may also be called inside
/// run(), by all replicas. Corresponds to
/// tf.train.ExponentialMovingAverage.
class ExponentialMovingAverage {
 public:
  /// Throws kInvalidArgument if decay is not in [0, 1] or the name is empty.
  explicit ExponentialMovingAverage(ExponentialMovingAverageOptions options = {});

  /// Creates averages for the variables. Call it in the strategy's scope. Throws kAlreadyExists if
  /// a variable already has an average, and kInvalidArgument if a variable does not have a
  /// floating-point type.
  void track(std::span<const Variable> variables);
  /// Same as track(), but for a number that is not a variable.
  void track_number(const std::string& name);

  /// Returns decay, or min(decay, (1 + n) / (10 + n)) if a number of updates n is given, so that
  /// averages change faster at the beginning.
  double decay_after(std::optional<std::int64_t> num_updates) const;
  /// Updates the averages of all variables, once for all replicas. Inside run(), throws
  /// kUnimplemented on workers that train asynchronously with parameter servers.
  void apply(std::optional<std::int64_t> num_updates = std::nullopt);
  /// Updates and returns the moving average of the number called `name`. Inside run(), uses the
  /// mean of `value` over replicas.
  double apply_number(const std::string& name, double value,
                      std::optional<std::int64_t> num_updates = std::nullopt);

  /// Returns the average of the variable or number called `name`. Throws kNotFound, listing all
  /// names, if there is none.
  const Variable& average(const std::string& name) const;
  /// Returns the averages, which a checkpoint stores: those of variables, then those of numbers.
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
