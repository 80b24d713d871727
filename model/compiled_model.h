// What Model::compile makes, and what one replica does with its part of a batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/element.h"
#include "tutti/model/callback.h"
#include "tutti/model/model.h"

namespace tutti::internal {

/// The mean loss of all examples. A batch of g global rows counts g times.
class LossTracker final : public Metric {
 public:
  explicit LossTracker(const std::string& name = "loss");
  /// `loss`: this replica's share of the batch's loss; `rows`: its rows.
  void update_state(const Tensor& loss, std::int64_t rows, std::int64_t global_rows);
  Tensor result() const override;
  /// What each replica of this process added, in their order. Outside replicas.
  std::vector<double> totals_of_replicas() const;

 private:
  Variable total_;
  Variable rows_;
};

/// Returns the places of values that are NaN or infinite, counted from `first`.
std::vector<int> not_finite(std::span<const double> values, int first);

/// A metric of one output of the model.
struct OutputMetric {
  std::shared_ptr<PredictionMetric> metric;
  std::string shown_name;  // in logs: with the output's name in front where there are several
  std::size_t output = 0;
  bool weighted = false;
};

/// The loss of one output.
struct OutputLoss {
  Loss loss;
  double weight = 1.0;
  std::unique_ptr<LossTracker> tracker;  // null: the model has one output
};

struct CompiledModel {
  CompileOptions options;                // as given
  std::unique_ptr<Optimizer> optimizer;  // null: nothing can be trained
  std::vector<OutputLoss> losses;        // one per output, or none
  std::vector<OutputMetric> metrics;     // plain ones, then weighted ones
  std::vector<std::shared_ptr<Metric>> layer_metrics;
  LossTracker loss_tracker;
  std::int64_t steps_per_execution = 1;
  bool has_constraints = false;

  /// Loss, losses of outputs, metrics, layers' metrics, each once, with the names of the logs.
  std::vector<std::pair<std::string, Metric*>> all_metrics();
  Logs logs();
  void reset_metrics();
};

/// Throws kInvalidArgument in the name of `who` unless a call of tensors gives as many inputs as
/// the model has, and as many labels as it has outputs. No labels: the loss may be of layers alone.
void require_counts(const Model& model, std::string_view who, std::size_t inputs,
                    std::size_t labels);
/// The same for a batch of `components`: inputs, then labels, then weights (one, or one per
/// output). `needs_labels`: the model has a loss or metrics that compare.
void require_components(const Model& model, std::string_view who, std::size_t components,
                        bool needs_labels);

/// Warns once where layers were frozen, unfrozen or added since compile(): as in Keras that takes
/// effect with the next compile().
void warn_of_changes_since_compile(const Model& model, const CompiledModel& compiled);

/// Weights of examples by their class.
using ClassWeights = std::map<std::int64_t, double>;

/// The steps of fit and evaluate, as each replica runs them.
class ReplicaStep {
 public:
  /// `class_weights` (not owned, may be null) multiply the weights of examples in train().
  ReplicaStep(const Model& model, CompiledModel& compiled,
              const ClassWeights* class_weights = nullptr);

  /// Forward, backward, sum over replicas, update, metrics; this replica's share of the loss.
  Tensor train(const Batch& batch);
  /// Forward and metrics.
  void test(const Batch& batch);

 private:
  /// A batch cut into what the model takes and what it is compared with.
  struct Parts {
    std::vector<Tensor> inputs;
    std::vector<Tensor> labels;   // one per output
    std::vector<Tensor> weights;  // one per output; may be undefined
  };
  Parts parts_of(const Batch& batch, std::string_view who) const;
  std::vector<Tensor> call_model(const Parts& parts, CallContext context) const;
  /// Once: compile() does not know what a call() of one's own ends with.
  void look_for_probabilities(std::span<const Tensor> predictions) const;
  /// This replica's share of the loss; fills in those of the outputs.
  Tensor total_loss(const Batch& batch, const Parts& parts, std::span<const Tensor> predictions,
                    std::span<const Tensor> added_losses, std::vector<Tensor>& shares) const;
  void update_metrics(const Batch& batch, const Parts& parts, std::span<const Tensor> predictions,
                      const Tensor& loss, std::span<const Tensor> shares);

  const Model& model_;
  CompiledModel& compiled_;
  const ClassWeights* class_weights_;
  mutable std::atomic<bool> has_looked_at_predictions_ = false;
};

}  // namespace tutti::internal
