// Helpers for tests of XLA: the path of the plugin, and a training loop under two strategies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/thrown.h"
#include "tutti/tpu.h"
#include "tutti/tutti.h"

namespace tutti {

/// Path of the plugin: TUTTI_PJRT_PLUGIN, or the plugin in the build folder. Set before devices are
/// first used.
inline const std::string kPlugin = [] {
  setenv("TUTTI_PJRT_PLUGIN", TUTTI_TEST_XLA_PLUGIN, 0);
  setenv("XLA_FLAGS", "--xla_backend_optimization_level=0", 0);  // saves compile time
  return std::string(std::getenv("TUTTI_PJRT_PLUGIN"));
}();

/// Returns a folder that only this process uses, because other processes may run the same tests.
inline std::string own_folder(const char* name) {
  return ::testing::TempDir() + name + std::to_string(getpid());
}

/// Losses of several steps, and the final weights.
struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<double>> weights;
};

/// Returns the largest difference between the losses or weights of two runs.
inline double largest_difference(const Trained& a, const Trained& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    worst = std::max(worst, std::abs(a.losses[i] - b.losses.at(i)));
  for (std::size_t v = 0; v < a.weights.size(); ++v) {
    for (std::size_t i = 0; i < a.weights[v].size(); ++i)
      worst = std::max(worst, std::abs(a.weights[v][i] - b.weights.at(v).at(i)));
  }
  return worst;
}

inline std::vector<double> loss_differences(const Trained& a, const Trained& b) {
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    differences.push_back(std::abs(a.losses[i] - b.losses.at(i)));
  return differences;
}

/// Model for training, created in the strategy's scope. In each step, each replica calls `step`
/// with its features and labels; `step` returns the replica's share of the loss.
struct Trainee {
  std::function<Tensor(const Batch& batch)> step;
  std::vector<Variable> variables;
};
using MakeTrainee = std::function<Trainee()>;

/// Trains `steps` steps on a dataset of global batches. Returns the losses and the weights.
inline Trained train(Strategy& strategy, const Dataset& dataset, const MakeTrainee& make,
                     int steps) {
  set_random_seed(7);
  const auto scope = strategy.scope();
  const Trainee trainee = make();
  Trained result;
  DistributedDataset batches = strategy.distribute_dataset(dataset.repeat());
  for (const PerReplica<Batch>& batch : batches) {
    const PerReplica<Tensor> losses = strategy.run(trainee.step, batch);
    result.losses.push_back(strategy.reduce(ReduceOp::kSum, losses).item_double());
    if (static_cast<int>(result.losses.size()) == steps) break;
  }
  for (const Variable& variable : trainee.variables)
    result.weights.push_back(variable.value().to_doubles());
  return result;
}

/// Trains with `replicas` replicas on cpu:0 and on as many XLA devices; expects losses and weights
/// that differ by less than `tolerance`.
inline void expect_close_to_mirrored(int replicas, const Dataset& dataset, const MakeTrainee& make,
                                     int steps, double tolerance) {
  MirroredStrategy mirrored(LocalStrategyOptions{.devices = "cpu:0", .replicas = replicas});
  TpuStrategy tpu({.replicas = replicas});
  const Trained expected = train(mirrored, dataset, make, steps);
  const Trained got = train(tpu, dataset, make, steps);
  EXPECT_LT(largest_difference(expected, got), tolerance)
      << replicas << " replicas; differences of losses: " << join(loss_differences(expected, got));
  EXPECT_EQ(tpu.num_compiled(), 1);
}

}  // namespace tutti
