// Helpers for optimizer tests: variables, updates with given gradients, and a reducer that records
// its calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::testing {

inline constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

inline Tensor doubles(const std::vector<double>& values) {
  return Tensor::from<double>({static_cast<std::int64_t>(values.size())}, values);
}
inline Tensor floats(const std::vector<float>& values) {
  return Tensor::from<float>({static_cast<std::int64_t>(values.size())}, values);
}
inline Variable variable(const Tensor& value, const std::string& name) {
  return Variable(value, {.name = name});
}

/// Returns irregular gradients of both signs: `count` numbers for each of `num_steps` steps.
inline std::vector<std::vector<double>> gradients_of_steps(int num_steps, std::size_t count) {
  std::vector<std::vector<double>> steps;
  for (int s = 0; s < num_steps; ++s) {
    const RandomStream stream(RandomKey{21, kUserPurpose, static_cast<std::uint64_t>(s)});
    auto& step = steps.emplace_back();
    for (std::size_t i = 0; i < count; ++i) step.push_back(stream.normal(i));
  }
  return steps;
}

/// Calls apply_gradients() once per step on a float64 variable; returns the final weights.
inline std::vector<double> weights_after(Optimizer& optimizer,
                                         const std::vector<std::vector<double>>& steps) {
  for (const auto& step : steps) {
    const Gradient gradient(doubles(step));
    optimizer.apply_gradients({&gradient, 1});
  }
  return optimizer.variables()[0].value().to_doubles();
}

/// Copies weights and state from `from` to `to`, which must be an optimizer of the same kind.
inline void copy_state(const Optimizer& from, const Optimizer& to) {
  const auto copy = [](std::span<const Variable> source, std::span<const Variable> target) {
    ASSERT_EQ(target.size(), source.size());
    for (std::size_t i = 0; i < target.size(); ++i) {
      EXPECT_EQ(target[i].name(), source[i].name());
      Variable(target[i]).assign(source[i].value());
    }
  };
  copy(from.variables(), to.variables());
  copy(from.state_variables(), to.state_variables());
}

/// Returns a learning rate for each step. The rates cycle through 0.3, 0.06, 0.3 and 0.012.
inline std::vector<double> changing_rates(std::size_t num_steps) {
  const double cycle[] = {0.3, 0.06, 0.3, 0.012};
  std::vector<double> rates;
  for (std::size_t s = 0; s < num_steps; ++s) rates.push_back(cycle[s % 4]);
  return rates;
}

/// Same as weights_after(), but step s has the learning rate rates[s].
inline std::vector<double> weights_after(Optimizer& optimizer,
                                         const std::vector<std::vector<double>>& steps,
                                         const std::vector<double>& rates) {
  for (std::size_t s = 0; s < steps.size(); ++s) {
    optimizer.set_learning_rate(rates.at(s));
    weights_after(optimizer, {steps[s]});
  }
  return optimizer.variables()[0].value().to_doubles();
}

/// Reducer that multiplies gradients by the number of replicas, as if all replicas had equal
/// gradients, and records its calls.
class RecordingReducer final : public GradientReducer {
 public:
  explicit RecordingReducer(double num_replicas) : num_replicas_(num_replicas) {}

  void begin(std::span<const Variable> variables) override {
    calls.push_back(concat("begin ", variables.size()));
    gradients_.assign(variables.size(), Gradient());
  }
  void ready(std::size_t index, const Gradient& gradient) override {
    calls.push_back(concat("ready ", index));
    gradients_.at(index) = gradient;
  }
  std::vector<Gradient> finish() override {
    calls.emplace_back("finish");
    if (on_finish) on_finish();
    std::vector<Gradient> sums;
    for (const Gradient& gradient : gradients_) sums.push_back(summed(gradient));
    return sums;
  }
  void updates_done() override {
    calls.emplace_back("updates_done");
    if (on_updates_done) on_updates_done();
  }

  std::vector<std::string> calls;
  std::function<void()> on_finish;
  std::function<void()> on_updates_done;

 private:
  Gradient summed(const Gradient& gradient) const {
    if (gradient.is_none()) return gradient;
    std::vector<double> values = gradient.dense().to_doubles();
    for (double& value : values) value *= num_replicas_;
    return Tensor::from<double>(gradient.dense().shape(), values);
  }

  double num_replicas_;
  std::vector<Gradient> gradients_;
};

/// Expects that a sparse gradient with repeated rows changes weights exactly as the equivalent
/// dense gradient does.
template <class MakeOptimizer>
void expect_sparse_equals_dense(const MakeOptimizer& make) {
  const std::vector<double> start = {1, 2, 3, 4, 5, 6, 7, 8};
  const Variable dense(Tensor::from<double>({4, 2}, start), {.name = "dense"});
  const Variable sparse(Tensor::from<double>({4, 2}, start), {.name = "sparse"});
  const auto for_dense = make(dense);
  const auto for_sparse = make(sparse);
  for (int step = 0; step < 5; ++step) {
    const double d = step;
    const Gradient rows(IndexedSlices{Tensor::from<double>({3, 2}, {1 + d, -2, 0.5, d, 0.25, -1}),
                                      Tensor::from<std::int64_t>({3}, {step % 4, 2, step % 4}),
                                      {4, 2}});
    const Gradient full(rows.to_dense());
    for_sparse->apply_gradients({&rows, 1});
    for_dense->apply_gradients({&full, 1});
    expect_same_bits(sparse.value(), dense.value());
  }
}

}  // namespace tutti::testing
