// Moving averages with TensorFlow's rule.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/exponential_moving_average.h"

#include <algorithm>

#include "core/names.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

/// Returns the amount whose subtraction moves the average toward `value`.
Tensor change_of(const Variable& average, const Tensor& value, double decay) {
  return multiply(subtract(average.value(), value), 1.0 - decay);
}

bool is_in_replica() { return GradientReducer::current() != nullptr; }

/// Subtracts `change`. In a replica, requires that all replicas have read the average and make the
/// same call.
void change_by(Variable average, const Tensor& change) {
  if (!is_in_replica()) return average.assign_sub(change);
  average.storage().assign_replicated(AssignOp::kSubtract, change);
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(ExponentialMovingAverageOptions options)
    : options_(std::move(options)) {
  internal::require(options_.decay >= 0.0 && options_.decay <= 1.0,
                    "ExponentialMovingAverage: expected a decay in [0, 1], got ", options_.decay);
  internal::require(!options_.name.empty(), "ExponentialMovingAverage: expected a name, got none");
}

std::string ExponentialMovingAverage::average_name(const std::string& name) const {
  return name + "/" + options_.name;
}

void ExponentialMovingAverage::check_is_new(const std::string& name) const {
  for (const Variable& average : averages()) {
    if (average.name() != average_name(name)) continue;
    fail(ErrorCode::kAlreadyExists, "ExponentialMovingAverage: '", name,
         "' already has an average; expected each variable once");
  }
}

void ExponentialMovingAverage::track(std::span<const Variable> variables) {
  for (const Variable& variable : variables) {
    check_is_new(variable.name());
    internal::require(is_floating(variable.dtype()), "ExponentialMovingAverage: variable '",
                      variable.name(), "': expected a floating-point type, got ", variable.dtype());
    Variable average = variable.storage().create_slot(average_name(variable.name()), 0.0);
    average.assign(variable.value());
    pairs_.push_back({variable, average});
  }
}

void ExponentialMovingAverage::track_number(const std::string& name) {
  check_is_new(name);
  numbers_.emplace_back(
      name, Variable(Tensor::zeros({}),
                     {.name = average_name(name), .trainable = false, .on_host = true}));
}

double ExponentialMovingAverage::decay_after(std::optional<std::int64_t> num_updates) const {
  if (!num_updates) return options_.decay;
  const auto n = static_cast<double>(*num_updates);
  return std::min(options_.decay, (1.0 + n) / (10.0 + n));
}

void ExponentialMovingAverage::apply(std::optional<std::int64_t> num_updates) {
  const GradientTape::StopRecording stop;
  const double decay = decay_after(num_updates);
  const auto own_change = [decay](const Pair& pair) {
    return change_of(pair.average, pair.variable.value(), decay);
  };
  if (!is_in_replica()) {  // one variable at a time, to keep only one change in memory
    for (const Pair& pair : pairs_) change_by(pair.average, own_change(pair));
    return;
  }
  std::vector<Tensor> changes;
  for (const Pair& pair : pairs_) changes.push_back(own_change(pair));
  internal::with_exclusive_access([&] {
    for (std::size_t i = 0; i < pairs_.size(); ++i) change_by(pairs_[i].average, changes[i]);
  });
}

double ExponentialMovingAverage::apply_number(const std::string& name, double value,
                                              std::optional<std::int64_t> num_updates) {
  const GradientTape::StopRecording stop;
  const Variable& average = this->average(name);
  Tensor given = Tensor::scalar(value, average.dtype());
  if (is_in_replica()) {
    given = ReplicaGroup::current(options_.name).all_reduce(ReduceOp::kMean, given);
  }
  const Tensor own =
      change_of(average, given.to(average.value().device()), decay_after(num_updates));
  internal::with_exclusive_access([&] { change_by(average, own); });
  return average.value().item_double();
}

const Variable& ExponentialMovingAverage::average(const std::string& name) const {
  std::vector<std::string> names;
  for (const Pair& pair : pairs_) {
    if (pair.variable.name() == name) return pair.average;
    names.push_back(pair.variable.name());
  }
  for (const auto& [number, average] : numbers_) {
    if (number == name) return average;
    names.push_back(number);
  }
  fail(ErrorCode::kNotFound, "ExponentialMovingAverage: there is no average of '", name,
       "'; expected one of [", join(names), "]");
}

std::vector<Variable> ExponentialMovingAverage::averages() const {
  std::vector<Variable> all;
  for (const Pair& pair : pairs_) all.push_back(pair.average);
  for (const auto& [name, average] : numbers_) all.push_back(average);
  return all;
}

void ExponentialMovingAverage::assign_averages() {
  for (Pair& pair : pairs_) pair.variable.assign(pair.average.value());
}

}  // namespace tutti
