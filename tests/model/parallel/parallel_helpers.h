// Helpers for tests of model parallelism: training data, and reference training without a
// pipeline.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/model_parallel.h"
#include "tutti/tutti.h"

namespace tutti::testing {

constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

inline Tensor noise(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, {.seed = seed, .purpose = kUserPurpose}, -1.0, 1.0);
}

/// Returns the features of `rows` examples; sample_classes() returns their classes.
inline Tensor sample_rows(std::int64_t rows = 24) { return noise({rows, 10}, 3); }
inline Tensor sample_classes(std::int64_t rows = 24) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back(i * i % 3);
  return Tensor::from<std::int64_t>({rows}, values);
}

inline Tensor cross_entropy(const Tensor& labels, const Tensor& predictions) {
  return losses::sparse_categorical_crossentropy(labels, predictions);
}

/// Loss of each step, and the weights after training, in creation order.
struct Training {
  std::vector<float> losses;
  std::vector<Tensor> weights;
};

inline std::vector<Tensor> values_of(const std::vector<Variable>& variables) {
  std::vector<Tensor> values;
  for (const Variable& variable : variables) values.push_back(variable.value());
  return values;
}

/// Trains without a pipeline: runs the micro-batches sequentially through `model`, adds their
/// gradients in the same order, and updates once per step.
inline Training train_plainly(const Model& model, const Tensor& x, const Tensor& y,
                              int micro_batches, int steps) {
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1, .momentum = 0.9});
  const std::vector<Variable> variables = model.trainable_variables();
  const std::int64_t rows = x.shape()[0], part = rows / micro_batches;
  Training result;
  for (int step = 0; step < steps; ++step) {
    const RandomContextScope random({random_seed(), static_cast<std::uint64_t>(step), 0});
    std::vector<Gradient> sums;
    Tensor loss;
    for (int k = 0; k < micro_batches; ++k) {
      GradientTape tape;
      const Tensor predictions = model(x.detached_rows(k * part, part), {.training = true});
      const Tensor own =
          compute_average_loss(cross_entropy(y.detached_rows(k * part, part), predictions), rows);
      const std::vector<Gradient> gradients = tape.gradient(own, variables);
      loss = k == 0 ? own : loss + own;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (k == 0) {
          sums.push_back(gradients[i]);
        } else {
          sums[i] = sums[i].dense() + gradients[i].dense();
        }
      }
    }
    optimizer.apply_gradients(sums);
    result.losses.push_back(loss.item());
  }
  result.weights = values_of(model.variables());
  return result;
}

inline Training train_in_a_pipeline(const StagedSequential& model, const Tensor& x, const Tensor& y,
                                    PipelineOptions options, int steps) {
  Pipeline pipeline(model, cross_entropy, options);
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1, .momentum = 0.9});
  Training result;
  for (int step = 0; step < steps; ++step) {
    const PipelineResult batch = pipeline.gradients(x, y);
    optimizer.apply_gradients(batch.gradients);
    result.losses.push_back(batch.loss.item());
  }
  result.weights = values_of(model.variables());
  return result;
}

inline void expect_same_training(const Training& actual, const Training& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (std::size_t i = 0; i < actual.weights.size(); ++i) {
    expect_same_bits(actual.weights[i], expected.weights[i]);
  }
}

}  // namespace tutti::testing
