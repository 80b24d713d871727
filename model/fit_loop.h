// Epochs and steps of Model::fit and Model::evaluate, and the state of a running fit.
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

/// Mean loss over all examples: the mean over batches, weighted by their global numbers of rows.
class LossTracker final : public Metric {
 public:
  explicit LossTracker(const std::string& name = "loss");
  /// `loss`: this replica's share of the batch's loss; `rows`: this replica's number of rows.
  void update_state(const Tensor& loss, std::int64_t rows, std::int64_t global_rows);
  Tensor result() const override;
  /// Returns the total for each replica of this process. Must be called outside replicas.
  std::vector<double> totals_of_replicas() const;

 private:
  Variable total_;
  Variable rows_;
};

/// Returns the indices, counted from `first`, of values that are NaN or infinite.
std::vector<int> not_finite(std::span<const double> values, int first);

/// Metric of one output of the model.
struct OutputMetric {
  std::shared_ptr<PredictionMetric> metric;
  std::string shown_name;  // name in logs; with several outputs, begins with the output's name
  std::size_t output = 0;
  bool weighted = false;
};

/// Loss of one output.
struct OutputLoss {
  Loss loss;
  double weight = 1.0;
  std::unique_ptr<LossTracker> tracker;  // null if the model has one output
};

struct CompiledModel {
  CompileOptions options;                // as passed to compile()
  std::unique_ptr<Optimizer> optimizer;  // null if nothing can be trained
  std::vector<OutputLoss> losses;        // one per output, or empty
  std::vector<OutputMetric> metrics;     // unweighted metrics, then weighted ones
  std::vector<std::shared_ptr<Metric>> layer_metrics;
  LossTracker loss_tracker;
  std::int64_t steps_per_execution = 1;
  bool has_constraints = false;

  /// Returns the total loss, the outputs' losses (with several outputs), the metrics and the
  /// layers' metrics, each with its name in the logs.
  std::vector<std::pair<std::string, Metric*>> all_metrics();
  Logs logs();
  void reset_metrics();
};

/// Throws kInvalidArgument, naming `who`, unless there is one tensor for each input of the model
/// and one label tensor for each output. All labels may be omitted, because layers may add all
/// losses.
void require_counts(const Model& model, std::string_view who, std::size_t inputs,
                    std::size_t labels);
/// Same as require_counts(), but for a batch of `components`: inputs, labels, then weights (one for
/// all outputs, or one per output). `needs_labels`: the model has a loss or metrics that use
/// labels.
void require_components(const Model& model, std::string_view who, std::size_t components,
                        bool needs_labels);

/// Warns once if layers were frozen, unfrozen or added after compile(). As in Keras, such a change
/// takes effect with the next compile().
void warn_of_changes_since_compile(const Model& model, const CompiledModel& compiled);

/// Example weights, keyed by class.
using ClassWeights = std::map<std::int64_t, double>;

/// Returns the class weights of each output; empty if the options have none. Throws
/// kInvalidArgument unless there is one map per output of the model.
std::vector<ClassWeights> class_weights_of(const Model& model, const FitOptions& options);
/// Warns about class weights whose class number is negative or too large for the output.
void warn_of_classes(const Model& model, std::span<const ClassWeights> class_weights);
/// Warns about weighted classes that do not occur in these labels (one tensor per output).
void warn_of_absent_classes(const Model& model, std::span<const ClassWeights> class_weights,
                            std::span<const Tensor> labels);

/// Training and evaluation steps of fit and evaluate on one replica.
class ReplicaStep {
 public:
  /// `class_weights` multiply the weights of examples in train(); one per output, or empty.
  ReplicaStep(const Model& model, CompiledModel& compiled,
              std::vector<ClassWeights> class_weights = {});

  /// Runs one training step with metrics; returns this replica's share of the loss.
  Tensor train(const Batch& batch);
  /// Runs the forward pass and metrics.
  void test(const Batch& batch);

 private:
  /// Parts of a batch: inputs of the model, and labels and weights of the outputs.
  struct Parts {
    std::vector<Tensor> inputs;
    std::vector<Tensor> labels;   // one per output
    std::vector<Tensor> weights;  // one per output, possibly undefined
  };
  Parts parts_of(const Batch& batch, std::string_view who) const;
  std::vector<Tensor> call_model(const Parts& parts, CallContext context) const;
  /// Warns once if the predictions are probabilities but the loss takes logits. compile() cannot
  /// detect this mismatch, because it does not know the result of a custom call().
  void look_for_probabilities(std::span<const Tensor> predictions) const;
  /// Returns this replica's share of the loss; appends the share of each output's loss to `shares`.
  Tensor total_loss(const Batch& batch, const Parts& parts, std::span<const Tensor> predictions,
                    std::span<const Tensor> added_losses, std::vector<Tensor>& shares) const;
  void update_metrics(const Batch& batch, const Parts& parts, std::span<const Tensor> predictions,
                      const Tensor& loss, std::span<const Tensor> shares);

  const Model& model_;
  CompiledModel& compiled_;
  const std::vector<ClassWeights> class_weights_;
  mutable std::atomic<bool> has_looked_at_predictions_ = false;
};

// State of a running fit, in addition to the model: progress, data, metrics and callbacks.

/// Progress of one fit() call.
struct FitProgress {
  FitPoint point;
  bool is_ended = false;  // true if fit ended before its last epoch
  History history;
  Logs logs;  // logs of the last finished epoch

  Json to_json() const;
  static FitProgress from_json(const Json& json);
};

/// Provides the metrics' sums, separately for each replica.
TensorProvider tensors_of_metrics(CompiledModel& compiled);

StateProvider state_of_callbacks(const std::vector<AnyCallback>& callbacks);
TensorProvider tensors_of_callbacks(const std::vector<AnyCallback>& callbacks);

// Epochs and steps.

/// Number of batches that a call takes from its data, and the names used in its messages.
struct FeedSteps {
  const char* who;                                    // "Model::fit"
  const char* option;                                 // "steps_per_epoch"
  std::optional<std::int64_t> number = std::nullopt;  // nullopt: a full pass over the data
  /// If true, an epoch may span passes: the next epoch continues the current pass, and a new pass
  /// may begin within an epoch. Otherwise, each epoch begins and ends with a pass.
  bool across_passes = false;
};

/// Provides the global batches of each epoch.
class BatchFeed {
 public:
  /// Throws kInvalidArgument if the number of steps is not positive, or if it is not given and the
  /// data are infinite.
  BatchFeed(DistributedDataset data, FeedSteps steps);
  /// Must be called before the first batch of each epoch.
  void begin_epoch();
  /// Returns the epoch's next batch, valid until the next call, or nullptr at the end. Throws
  /// kInvalidArgument for an empty dataset.
  const PerReplica<Batch>* next();
  /// Returns the number of batches per epoch, if known.
  std::optional<std::int64_t> num_steps() const;
  DistributedDataset& data() { return data_; }

  /// Returns the position in the data; restore() continues from this position. `batches` is the
  /// number of batches already returned in the epoch; if it is not 0, do not call begin_epoch()
  /// after restore().
  Json position() const;
  void restore(const Json& position, std::int64_t batches);

 private:
  void start_pass();
  /// Ends the current pass: the next data_.begin() starts a new pass, even after a restart.
  void leave_pass();
  void warn_of_end();
  void warn_of_length() const;
  bool continues_passes() const { return steps_.number && steps_.across_passes; }

  DistributedDataset data_;
  FeedSteps steps_;
  std::optional<DistributedDataset::Iterator> iterator_;
  bool advance_ = false;  // true if next() has returned the current batch
  std::int64_t step_ = 0;
  bool is_restored_ = false;  // true if restored within a pass, which may have no batches left
  bool has_ended_ = false;    // true if restored at the end of the epoch's pass
  bool warned_ = false;  // true once a warning about a pass ending within an epoch has been logged
};

/// One call of fit. Its state fully determines the remaining training, so training can continue
/// from any saved state after a restart or a worker failure.
class FitLoop {
 public:
  /// `validation`: data for evaluation after epochs.
  FitLoop(Model& model, CompiledModel& compiled, DistributedDataset data, const FitOptions& options,
          std::optional<DistributedDataset> validation);
  History run();
  bool has_validation() const { return validation_.has_value(); }
  /// Returns a checkpoint of the full state. The checkpoint must not be used after run().
  Checkpoint checkpoint();
  /// Calls `body`, then restores the metric sums of the fit that is running on this thread. Has an
  /// effect only in a callback of a fit under `strategy`, where all workers must call it.
  static void keep_metrics_of_caller(const Strategy& strategy, const std::function<void()>& body);

 private:
  void train();
  void run_epochs();
  void run_epoch();
  void run_step(const PerReplica<Batch>& batch);
  void finish_epoch();
  Logs fetched_logs();
  void notify_batch_end(std::int64_t rows);
  void notify_state_complete();
  bool stops_because_of_signal();
  std::string point_text() const;
  void report_stop();
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

/// Runs one evaluate() call.
Logs run_evaluation(Model& model, CompiledModel& compiled, BatchFeed& feed,
                    const EvaluateOptions& options);

}  // namespace tutti::internal

namespace tutti {

// State shared by the copies of a model, in addition to their layers.

struct Model::State {
  /// Innermost running call of fit or evaluate, for its callbacks.
  struct Call {
    const char* method = nullptr;      // "Model::fit" or "Model::evaluate"; null if neither runs
    internal::FitLoop* fit = nullptr;  // null if evaluate() was called outside fit()
    bool stop_requested = false;       // if true, the epoch and fit() end after this step
    bool is_interrupted = false;       // if true, fit() returns before the epoch ends
  };

  Strategy* strategy = nullptr;  // must outlive all uses of the model
  std::unique_ptr<internal::CompiledModel> compiled;
  std::int64_t epochs_trained = 0;
  bool is_stopped_by_signal = false;  // true if a signal stopped the last fit()
  std::int64_t stop_checks = 0;       // number of checks for a stop signal, over all fit() calls
  Call call;
};

}  // namespace tutti
