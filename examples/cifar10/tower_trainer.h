// Training with towers: several devices compute copies of the network with one set of variables,
// which are updated with the mean gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "examples/cifar10/cifar10_network.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/reduction/average_gradients.h"
#include "tutti/strategy/strategies.h"
#include "tutti/strategy/variables/memory_report.h"

namespace tutti::examples::cifar10 {

struct TowerTrainerOptions {
  /// Devices of the towers. A tower's index is part of its name.
  std::vector<Device> devices = {Device{}};
  /// Device that stores the variables, and computes the mean and the update.
  Device variable_device = {};
  /// Batch size of each tower, or the mean over the towers if tower_weights is set.
  std::int64_t batch_size = 128;
  bool use_fp16 = false;
  /// Share of the batch for each tower, for devices of different speeds; empty means equal shares.
  /// The loss and the update remain those of the global batch.
  std::vector<double> tower_weights = {};
};

/// Results of one step.
struct StepResult {
  /// Total loss before the update: the mean over towers, weighted by rows.
  float loss = 0.0f;
  /// Number of rows for each tower.
  std::vector<double> tower_rows;
  /// Losses of each tower, such as "tower_0/conv1/weight_loss"; the last one is the total.
  std::vector<std::vector<NamedTensor>> tower_losses;
  /// Activations of the last tower; empty in steps without summaries.
  std::vector<NamedTensor> activations;
  /// Means over the towers; empty in steps without summaries.
  std::vector<GradientAndVariable> gradients;
  /// Placement lines of all towers; empty in steps without a placement log.
  std::vector<std::string> placement;
};

struct StepOptions {
  bool with_summaries = false;
  bool with_placement = false;
};

/// Returns the row-weighted mean over towers of loss `index`, which equals the loss of the global
/// batch.
double mean_loss(const StepResult& result, std::size_t index);

/// Training loop of the tutorial; replaces its graph and session. Not thread-safe.
class TowerTrainer {
 public:
  /// Decay rates for the moving averages of losses and variables.
  static constexpr double kLossAverageDecay = 0.9;
  static constexpr double kMovingAverageDecay = 0.9999;

  explicit TowerTrainer(TowerTrainerOptions options);

  /// Runs one step of all towers, each on its part of the batch: computes losses and gradients,
  /// averages the gradients, updates the variables, and then updates the moving averages.
  StepResult step(const PerReplica<Batch>& batch, StepOptions options = {});

  /// Returns the sum of the batch sizes of all towers.
  std::int64_t global_batch_size() const;
  /// Returns "tower_0", "tower_1", ...
  const std::vector<std::string>& tower_names() const { return tower_names_; }
  /// Returns the variable that counts updates: int64 [], not trainable.
  const Variable& global_step() const { return optimizer_->iterations(); }
  double learning_rate() const { return optimizer_->learning_rate(); }
  const VariableStore& variables() const { return store_; }
  const ExponentialMovingAverage& variable_averages() const { return variable_averages_; }
  /// Returns moving averages of the losses; each loss is a mean over towers. The names of the
  /// losses, such as "total_loss", have no tower prefix.
  const ExponentialMovingAverage& loss_averages() const { return loss_averages_; }
  Strategy& strategy() { return strategy_; }
  /// Returns the groups "parameters", "optimizer slots" and "moving averages" for memory_report().
  std::vector<VariableGroup> variable_groups() const;
  /// Returns a checkpoint of all state that another process needs to continue: variables, averages,
  /// step.
  Checkpoint checkpoint();

 private:
  struct TowerResult;
  TowerResult run_tower(const Cifar10Network& network, const std::string& name, const Batch& batch,
                        StepOptions options) const;
  void apply_mean(const std::vector<GradientAndVariable>& mean);
  void average_losses(const StepResult& result);

  TowerTrainerOptions options_;
  CentralStorageStrategy strategy_;
  std::vector<std::string> tower_names_;
  VariableStore store_;
  std::vector<Cifar10Network> networks_;  // one per tower; they share variables
  std::vector<Variable> trainable_;
  std::unique_ptr<Sgd> optimizer_;
  ExponentialMovingAverage variable_averages_;
  ExponentialMovingAverage loss_averages_;
};

}  // namespace tutti::examples::cifar10
