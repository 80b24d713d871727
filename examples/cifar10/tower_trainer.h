// Training with towers: copies of the computation on several devices, one set of variables, one
// update from the mean of their gradients.
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
  /// One tower each; their numbers are in the towers' names.
  std::vector<Device> devices = {Device{}};
  /// Where the variables are, and the mean and the update are computed.
  Device variable_device = {};
  /// Of one tower; of towers with unequal shares on average.
  std::int64_t batch_size = 128;
  bool use_fp16 = false;
  /// Shares of the batch for towers on devices of different speed, one per tower; empty: equal. The
  /// loss and the update stay those of the whole batch.
  std::vector<double> tower_weights = {};
};

/// What one step gave.
struct StepResult {
  /// The mean of the towers' total losses over their rows, before the update.
  float loss = 0.0f;
  /// Each tower's rows of the batch.
  std::vector<double> tower_rows;
  /// Each tower's losses, its total last: "tower_0/conv1/weight_loss", ...
  std::vector<std::vector<NamedTensor>> tower_losses;
  /// Of the last tower, in steps with summaries.
  std::vector<NamedTensor> activations;
  /// The means over towers, in steps with summaries.
  std::vector<GradientAndVariable> gradients;
  /// Of each tower, in steps with a placement log.
  std::vector<std::string> placement;
};

struct StepOptions {
  bool with_summaries = false;
  bool with_placement = false;
};

/// The mean of number `index` of the towers' losses, each counting by its rows: that of the whole
/// batch.
double mean_loss(const StepResult& result, std::size_t index);

/// The tutorial's training as an object: what build_graph and session were. Used by one thread.
class TowerTrainer {
 public:
  /// Decay of the averages of losses, and of variables.
  static constexpr double kLossAverageDecay = 0.9;
  static constexpr double kMovingAverageDecay = 0.9999;

  explicit TowerTrainer(TowerTrainerOptions options);

  /// One step of all towers, each on its part of the batch: losses, gradients, their mean, the
  /// update, then the averages.
  StepResult step(const PerReplica<Batch>& batch, StepOptions options = {});

  /// Of all towers.
  std::int64_t global_batch_size() const;
  /// "tower_0", "tower_1", ...
  const std::vector<std::string>& tower_names() const { return tower_names_; }
  /// Updates so far: int64 [], not trainable.
  const Variable& global_step() const { return optimizer_->iterations(); }
  double learning_rate() const { return optimizer_->learning_rate(); }
  const VariableStore& variables() const { return store_; }
  const ExponentialMovingAverage& variable_averages() const { return variable_averages_; }
  /// Of the means over towers; names without tower, "total_loss" among them.
  const ExponentialMovingAverage& loss_averages() const { return loss_averages_; }
  Strategy& strategy() { return strategy_; }
  /// "parameters", "optimizer slots" and "moving averages": what memory_report() counts.
  std::vector<VariableGroup> variable_groups() const;
  /// Everything that goes on in a later process: variables, averages, step.
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
  std::vector<Cifar10Network> networks_;  // one per tower, of the same variables
  std::vector<Variable> trainable_;
  std::unique_ptr<Sgd> optimizer_;
  ExponentialMovingAverage variable_averages_;
  ExponentialMovingAverage loss_averages_;
};

}  // namespace tutti::examples::cifar10
