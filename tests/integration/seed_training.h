// Training of a small model on a whole batch, as tests of whole trainings under strategies do it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tutti/tutti.h"

namespace tutti::seed_training {

inline Tensor noise(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, RandomKey{seed, kInitializerPurpose, 0, 0, 0}, -1.0, 1.0);
}

inline MirroredStrategy two_mirrored() { return MirroredStrategy({.devices = "cpu:0-1"}); }

/// Trains for `steps` steps on the whole of `x` and `y` with a mean squared error; the trainable
/// weights then, and those that are not trained.
inline std::vector<Tensor> trained(Strategy& strategy, const std::function<Sequential()>& make,
                                   const Tensor& x, const Tensor& y, int steps) {
  set_random_seed(5);
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({x, y}).batch(x.shape()[0]).repeat(steps));
  auto scope = strategy.scope();
  Sequential model = make();
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1});
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor each =
        losses::mean_squared_error(batch.labels(), model(batch.features(), {.training = true}));
    optimizer.minimize(tape, compute_average_loss(each, batch.global_rows()));
  };
  for (const PerReplica<Batch>& batch : batches) strategy.run(step, batch);
  EXPECT_EQ(optimizer.iterations().value().item_int(), steps);
  std::vector<Tensor> weights;
  for (const Variable& weight : model.trainable_variables()) weights.push_back(weight.value());
  for (const Variable& weight : model.variables()) {
    if (!weight.trainable()) weights.push_back(weight.value());
  }
  return weights;
}

inline void expect_near(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                        double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const std::vector<double> a = actual[i].to_doubles();
    const std::vector<double> b = expected[i].to_doubles();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], tolerance);
  }
}

}  // namespace tutti::seed_training
