// The epochs and steps of Model::fit and Model::evaluate, and what a running fit goes on from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/data/element.h"
#include "tutti/model/callback.h"
#include "tutti/model/model.h"
#include "tutti/model/progress.h"
#include "tutti/strategy/recovery.h"

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

// What a running fit goes on from, beyond the model: where it is, its data, metrics, callbacks.

/// Where a call of fit is.
struct FitProgress {
  FitPoint point;
  bool is_ended = false;  // before its last epoch
  History history;
  Logs logs;  // of the last epoch that ended

  Json to_json() const;
  static FitProgress from_json(const Json& json);
};

/// The sums that metrics have gathered, each replica's own.
TensorProvider tensors_of_metrics(CompiledModel& compiled);

StateProvider state_of_callbacks(const std::vector<AnyCallback>& callbacks);
TensorProvider tensors_of_callbacks(const std::vector<AnyCallback>& callbacks);

// The epochs and steps of Model::fit and Model::evaluate.

/// How many batches a call takes of its data, and the names for its messages.
struct FeedSteps {
  const char* who;                                    // "Model::fit"
  const char* option;                                 // "steps_per_epoch"
  std::optional<std::int64_t> number = std::nullopt;  // none: all of a pass
  /// Where a pass ends before the number is reached, or has more: the next epoch continues in it,
  /// and a new pass begins within an epoch. Otherwise an epoch is in one pass, from its beginning.
  bool across_passes = false;
};

/// Yields global batches, epoch by epoch.
class BatchFeed {
 public:
  /// Throws kInvalidArgument for a number that is not positive, and for data that never end without
  /// one.
  BatchFeed(DistributedDataset data, FeedSteps steps);
  /// Before the first batch of each epoch.
  void begin_epoch();
  /// The next batch of the epoch, valid until the next call; nullptr at its end. Throws
  /// kInvalidArgument for an empty dataset.
  const PerReplica<Batch>* next();
  /// Batches of an epoch, if known.
  std::optional<std::int64_t> num_steps() const;
  DistributedDataset& data() { return data_; }

  /// Where the data is; `batches` of the epoch were handed out. restore() goes on there, without
  /// begin_epoch() unless batches is 0.
  Json position() const;
  void restore(const Json& position, std::int64_t batches);

 private:
  void start_pass();
  /// The next begin() of the data starts the next pass, also after a restart.
  void leave_pass();
  void warn_of_end();
  void warn_of_length() const;
  bool continues_passes() const { return steps_.number && steps_.across_passes; }

  DistributedDataset data_;
  FeedSteps steps_;
  std::optional<DistributedDataset::Iterator> iterator_;
  bool advance_ = false;  // the iterator stands on a batch that was handed out
  std::int64_t step_ = 0;
  bool is_restored_ = false;  // the first pass may begin where the data ends
  bool has_ended_ = false;    // restored behind the end of the epoch's pass
  bool warned_ = false;       // that a pass ended before the steps of an epoch
};

/// One call of fit. Its state says what comes next, so that it can be set to any point of training
/// and run on: after a restart, and when a worker dies.
class FitLoop {
 public:
  /// `validation`: what is evaluated after epochs.
  FitLoop(Model& model, CompiledModel& compiled, DistributedDataset data, const FitOptions& options,
          std::optional<DistributedDataset> validation);
  History run();
  bool has_validation() const { return validation_.has_value(); }
  /// Everything that it goes on from. Not to be used after run().
  Checkpoint checkpoint();
  /// Calls `body`. In a callback of a fit under `strategy`, the metrics of that fit keep their
  /// sums, whatever `body` runs; all workers call it there.
  static void keep_metrics_of_caller(const Strategy& strategy, const std::function<void()>& body);

 private:
  void train();
  void run_epochs();
  void run_epoch();
  void run_step(const PerReplica<Batch>& batch);
  void finish_epoch();
  Logs fetched_logs();
  void tell_batch_end(std::int64_t rows);
  void tell_state_is_whole();
  void require_same_model() const;
  void require_same_stop() const;

  Model& model_;
  const std::shared_ptr<Model::State> state_;
  CompiledModel& compiled_;
  BatchFeed feed_;
  const FitOptions& options_;
  std::optional<BatchFeed> validation_;
  ReplicaStep step_;
  std::optional<Progress> progress_;
  FitProgress at_;
  std::optional<Recovery> recovery_;
  bool warned_of_loss_ = false;
};

/// One call of evaluate.
Logs run_evaluation(Model& model, CompiledModel& compiled, BatchFeed& feed,
                    const EvaluateOptions& options);

}  // namespace tutti::internal

namespace tutti {

// What the copies of a model share beyond its layers.

struct Model::State {
  /// The innermost call of fit or evaluate, as its callbacks see it.
  struct Call {
    const char* method = nullptr;      // null: none runs
    internal::FitLoop* fit = nullptr;  // null in an evaluate() outside fit()
    bool stop_requested = false;       // at the end of the epoch, of which no batch follows
    bool is_interrupted = false;       // fit returns at once
  };

  Strategy* strategy = nullptr;  // outlives the model's use
  std::unique_ptr<internal::CompiledModel> compiled;
  std::int64_t epochs_trained = 0;
  Call call;
};

}  // namespace tutti
