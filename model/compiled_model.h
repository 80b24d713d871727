// What Model::compile makes, and what one replica does with its part of a batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tutti/data/element.h"
#include "tutti/model/logs.h"
#include "tutti/model/model.h"

namespace tutti::internal {

/// The mean loss of all examples. A batch of g global rows counts g times.
class LossTracker final : public Metric {
 public:
  LossTracker();
  /// `loss`: this replica's share of the batch's loss; `rows`: its rows.
  void update_state(const Tensor& loss, std::int64_t rows, std::int64_t global_rows);
  Tensor result() const override;

 private:
  Variable total_;
  Variable rows_;
};

struct CompiledModel {
  std::unique_ptr<Optimizer> optimizer;  // null: nothing can be trained
  std::optional<Loss> loss;
  std::vector<std::shared_ptr<PredictionMetric>> metrics;
  std::vector<std::shared_ptr<PredictionMetric>> weighted_metrics;
  std::vector<std::shared_ptr<Metric>> layer_metrics;
  LossTracker loss_tracker;

  /// Loss, metrics, weighted metrics, layers' metrics, each once.
  std::vector<Metric*> all_metrics();
  Logs logs();
  void reset_metrics();
};

/// The steps of fit and evaluate, as each replica runs them.
class ReplicaStep {
 public:
  ReplicaStep(const Model& model, CompiledModel& compiled, int num_replicas);

  /// Forward, backward, sum over replicas, update, metrics.
  void train(const Batch& batch);
  /// Forward and metrics.
  void test(const Batch& batch);

  /// Seconds that replicas spent in gradient exchange (waiting for each other included) since the
  /// last call, averaged over replicas. Not while a step runs.
  double take_communication_seconds();

 private:
  Tensor total_loss(const Batch& batch, const Tensor& predictions,
                    std::span<const Tensor> added_losses) const;
  void update_metrics(const Batch& batch, const Tensor& predictions, const Tensor& loss);

  const Model& model_;
  CompiledModel& compiled_;
  struct alignas(64) Seconds {
    double value = 0.0;
  };
  std::vector<Seconds> communication_;  // by replica, each written by its own thread
};

}  // namespace tutti::internal
