// Model, a layer with compile, fit, evaluate and predict.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/model/callback.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric_spec.h"
#include "tutti/model/progress.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

namespace internal {
struct CompiledModel;
class FitLoop;
}  // namespace internal

/// Options for Model::compile(), as in tf.keras.Model.compile. compile() throws kInvalidArgument,
/// listing the known names, for an unknown name.
struct CompileOptions {
  /// Name or options of the optimizer, for example `AdamOptions{.learning_rate = 1e-3}`.
  OptimizerSpec optimizer = "sgd";
  /// If unset, only losses from add_loss() and regularizers are minimised.
  std::optional<Loss> loss = std::nullopt;
  /// Metrics without and with sample weights, respectively. Metrics that are means ignore masked
  /// steps in both cases (Keras's rules). A name that is already in use gets the prefix "weighted_"
  /// or a number.
  std::vector<MetricSpec> metrics = {};
  std::vector<MetricSpec> weighted_metrics = {};
  /// For models with several outputs, in output order: losses, their factors (default 1), metrics,
  /// and weighted metrics.
  std::vector<Loss> losses = {};
  std::vector<double> loss_weights = {};
  std::vector<std::vector<MetricSpec>> output_metrics = {};
  std::vector<std::vector<MetricSpec>> output_weighted_metrics = {};
  /// Number of batches between callback calls, and between updates of the progress line.
  std::int64_t steps_per_execution = 1;
  /// With the policy mixed_float16, adds dynamic loss scaling to an optimizer without a loss scale.
  bool auto_scale_loss = true;
};

/// Validation data for fit(): a batched dataset, tensors `{x, y}`, or, for several inputs or
/// outputs, vectors of tensors `{{x0, x1}, {y0, y1}}`.
struct ValidationData {
  ValidationData() = default;
  ValidationData(Dataset data) : dataset(std::move(data)) {}
  ValidationData(Tensor x, Tensor y)
      : ValidationData(std::vector<Tensor>{std::move(x)}, std::vector<Tensor>{std::move(y)}) {}
  ValidationData(std::vector<Tensor> x, std::vector<Tensor> y)
      : features(std::move(x)), labels(std::move(y)) {}
  std::optional<Dataset> dataset = std::nullopt;
  std::vector<Tensor> features = {};
  std::vector<Tensor> labels = {};
};

/// Options for Model::fit(), as in tf.keras.Model.fit. Must be equal on all workers, because
/// fetching the displayed values is a collective operation.
struct FitOptions {
  /// One past the index of the last epoch; the first epoch is initial_epoch.
  std::int64_t epochs = 1;
  /// Global batch size for tensors; must not be set for a dataset, which is already batched
  /// (kInvalidArgument). Default: 32, or num_rows / steps_per_epoch (rounded up) if steps_per_epoch
  /// is set.
  std::optional<std::int64_t> batch_size = std::nullopt;
  /// Tensors or a batched dataset (ValidationData); empty: no validation.
  ValidationData validation_data = {};
  std::vector<AnyCallback> callbacks = {};
  /// Number of global batches per epoch. Default: one pass over the dataset, which must be finite
  /// (else kInvalidArgument). If set, each epoch starts at the batch at which the previous epoch
  /// stopped. When a pass ends within an epoch, a warning is logged and a new pass begins.
  std::optional<std::int64_t> steps_per_epoch = std::nullopt;
  /// Index of the first epoch. If it is >= epochs, fit() logs a warning and does not train.
  std::int64_t initial_epoch = 0;
  Verbosity verbose = Verbosity::kProgress;
  /// If true, shuffles tensors (not datasets) in a different order each epoch, derived from the
  /// global seed.
  bool shuffle = true;
  /// Example weights [rows], or [rows, steps] for outputs [rows, steps, ...]. For tensors only:
  /// throws kInvalidArgument for a dataset, which contains the weights as its third component.
  Tensor sample_weight = {};
  /// Weight of each class (default 1) in the training loss and in weighted metrics. Requires one
  /// output and labels that are class numbers or one-hot. A warning is logged for a class that does
  /// not occur in the label tensors or, with a dataset, exceeds the number of classes.
  std::map<std::int64_t, double> class_weight = {};
  /// Same as class_weight, but for models with several outputs, in output order. With an empty map,
  /// all classes of that output have weight 1.
  std::vector<std::map<std::int64_t, double>> output_class_weights = {};
  /// Number of epochs between validations.
  std::int64_t validation_freq = 1;
  /// Number of global batches per validation, which always begins with the first batch. Default:
  /// one pass over validation_data, which must be finite (else kInvalidArgument).
  std::optional<std::int64_t> validation_steps = std::nullopt;
  /// If true, SIGINT (Ctrl-C) or SIGTERM to any worker makes fit() return on all workers after a
  /// batch on which they agree. fit() prints a line that reports this batch, the save, and how to
  /// continue. A BackupAndRestore among the callbacks saves after this batch. See
  /// Model::stopped_by_signal().
  bool stop_on_signals = false;
};

/// Options for Model::evaluate().
struct EvaluateOptions {
  /// Number of rows per batch if the data are tensors; not allowed with a dataset. Default: 32.
  std::optional<std::int64_t> batch_size = std::nullopt;
  std::vector<AnyCallback> callbacks = {};
  Verbosity verbose = Verbosity::kSilent;
  /// Same as FitOptions::sample_weight; not allowed with a dataset.
  Tensor sample_weight = {};
  /// Number of global batches. Default: all data, which must be finite (else kInvalidArgument).
  std::optional<std::int64_t> steps = std::nullopt;
};

/// Options for Model::save().
struct SaveOptions {
  /// If true, also saves the arguments of compile(), so that the loaded model is compiled. Set it
  /// to false if a loss or metric is a custom function, which cannot be saved.
  bool compile_arguments = true;
};

/// Options for Model::predict().
struct PredictOptions {
  /// Number of rows per batch if the data are tensors; not allowed with a dataset. Default: 32.
  std::optional<std::int64_t> batch_size = std::nullopt;
  /// Number of global batches. Default: all data, which must be finite (else kInvalidArgument).
  std::optional<std::int64_t> steps = std::nullopt;
};

/// Layer with the functions compile(), fit(), evaluate() and predict(). Use Sequential or
/// Functional, or derive from Model: call add_layer() in the constructor and implement call(). A
/// class with several inputs or outputs declares them in the constructor, with set_built({input
/// shapes}, {output shapes}). A model belongs to the strategy in whose scope it was created; that
/// strategy must outlive every use of the model. fit(), evaluate() and predict() may be called
/// outside the scope. Copies share all state. Not thread-safe. Corresponds to keras.Model.
class Model : public Layer {
 public:
  /// Creates the optimizer and the metrics in the scope of the model's strategy. Throws
  /// kFailedPrecondition in a callback of fit() or evaluate() and inside another strategy's scope
  /// (naming both strategies), and kInvalidArgument for LossReduction::kNone and for a metric
  /// object created under another strategy.
  void compile(CompileOptions options);

  /// Trains the model; each global batch is one step. Every replica computes on its slice, the loss
  /// is divided by the actual number of rows of the global batch, and gradients are summed. `data`
  /// is batched by the GLOBAL batch size. The history contains "loss" (mean over examples,
  /// including regularisation) and the metrics; their validation values have the prefix "val_".
  History fit(const Dataset& data, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());
  History fit(DistributedDataset data, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());
  History fit(const Tensor& x, const Tensor& y, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());
  /// Overload for several inputs or outputs. For such models, elements of a dataset contain inputs,
  /// labels, and optionally weights (one tensor for all outputs, or one per output).
  History fit(const std::vector<Tensor>& x, const std::vector<Tensor>& y, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());

  /// Returns the loss and the metrics over all examples. Every example has the same weight, even in
  /// a smaller last batch.
  Logs evaluate(const Dataset& data, EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());
  Logs evaluate(DistributedDataset data, EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());
  Logs evaluate(const Tensor& x, const Tensor& y, EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());
  Logs evaluate(const std::vector<Tensor>& x, const std::vector<Tensor>& y,
                EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());

  /// Returns the outputs for all examples, [rows, ...], in the order of the examples, in host
  /// memory. If an AutoShardPolicy shards the data, rows are ordered by step, then by replica
  /// across all workers. Does not need compile().
  Tensor predict(const Dataset& data, PredictOptions options = {},
                 const SourceLocation& where = SourceLocation::current());
  Tensor predict(DistributedDataset data, PredictOptions options = {},
                 const SourceLocation& where = SourceLocation::current());
  Tensor predict(const Tensor& x, PredictOptions options = {},
                 const SourceLocation& where = SourceLocation::current());
  /// Same as predict(), but for a model with several outputs; returns all of them.
  std::vector<Tensor> predict_all(const std::vector<Tensor>& x, PredictOptions options = {},
                                  const SourceLocation& where = SourceLocation::current());
  std::vector<Tensor> predict_all(DistributedDataset data, PredictOptions options = {},
                                  const SourceLocation& where = SourceLocation::current());

  /// Returns a table of layers, output shapes and parameter counts in Keras's format, followed by
  /// the number of bytes that each replica stores.
  std::string summary() const;
  /// Returns the layers as a graph in the DOT language; render it with `dot -Tsvg`.
  std::string to_dot() const;

  /// Saves the complete model in one file for load_model(): layers with their options, weights, the
  /// arguments of compile(), and all other content of checkpoint(). The file is that checkpoint
  /// (safetensors) with the architecture as JSON metadata. Throws kUnimplemented, naming the layer,
  /// loss or metric, if its constructor call is unknown. Collective: every worker must call it.
  void save(const std::string& path, SaveOptions options = {},
            const SourceLocation& where = SourceLocation::current());
  /// Save or load only the weights, as a safetensors file. Loading also accepts full checkpoints
  /// and files from other frameworks: `load_weights(path, {.rename = {{"fc1.weight",
  /// "dense/kernel"}}, .transpose = {"kernel"}, .strict = false})`.
  void save_weights(const std::string& path,
                    const SourceLocation& where = SourceLocation::current()) const;
  void load_weights(const std::string& path, LoadWeightsOptions options = {});
  /// Returns a checkpoint of the state from which training can continue: weights, optimizer, the
  /// strategy's step, and the number of trained epochs. After restoring it, continue with
  /// fit({.initial_epoch = epochs_trained()}).
  Checkpoint checkpoint();
  /// Returns the checkpoint of a running fit(), for callbacks: checkpoint() plus the current epoch
  /// and batch, position in the data, metric sums, and callback state. Restore and save it only in
  /// Callback::on_can_restore() and on_can_save(). Throws kFailedPrecondition outside fit().
  Checkpoint fit_checkpoint();

  bool compiled() const;
  /// Return the optimizer and the loss from compile(). Throw kFailedPrecondition if compile() has
  /// not been called.
  Optimizer& optimizer();
  const Loss& loss() const;
  /// Returns the names that evaluate() reports: "loss", then the metrics.
  std::vector<std::string> metrics_names() const;
  /// Returns whether larger or smaller values of the log entry `name` ("loss", "val_auc") are
  /// better; kUnknown for a name that is not in metrics_names() and for a metric without a
  /// direction.
  MetricDirection metric_direction(std::string_view name) const;

  /// Returns true while a fit() with validation_data is running. For callbacks.
  bool has_validation() const;
  /// Returns the replicas, across all workers, whose loss in this epoch or evaluation is NaN or
  /// infinite. Collective: every worker must call it.
  std::vector<int> replicas_without_finite_loss() const;
  /// Makes fit() end after the current step. For callbacks; must be called on all workers.
  void stop_training();
  /// Makes fit() return after the current batch, even in the middle of an epoch; training can
  /// continue from fit_checkpoint(). For callbacks; must be called on all workers.
  void interrupt_training();
  /// Returns true if the last fit() returned early because of FitOptions::stop_on_signals. The
  /// program should exit with status 75; `tutti run` then reports that the job can be resumed.
  bool stopped_by_signal() const;
  /// Number of epochs that fit() has finished. It also determines the order of a shuffled dataset.
  std::int64_t epochs_trained() const;
  Strategy& strategy() const;

  /// Name and activation of the layer that computes an output.
  struct Output {
    std::string name;
    std::string activation;
  };
  virtual std::vector<Output> outputs() const;
  /// Names of two connected layers, where a result of the first is an input of the second. edges()
  /// is empty if only the model's call() defines the connections.
  using Edge = std::pair<std::string, std::string>;
  virtual std::vector<Edge> edges() const { return {}; }
  /// Names of the inputs, in the order of input_shapes(); empty if the inputs have no names.
  virtual std::vector<std::string> input_names() const { return {}; }

 protected:
  /// If `name` is not empty, it becomes the prefix of all weight names ("encoder/dense/kernel").
  explicit Model(std::string name = "", std::optional<Shape> input_shape = std::nullopt);
  /// Never called: a model creates its weights in its constructor.
  Shape build(const Shape& input) override;

 private:
  struct State;
  friend class internal::FitLoop;
  History fit_on(DistributedDataset data, const FitOptions& options, const SourceLocation& where);
  Logs evaluate_on(DistributedDataset data, const EvaluateOptions& options,
                   const SourceLocation& where);
  std::vector<Tensor> predict_on(DistributedDataset data, std::optional<std::int64_t> steps,
                                 const SourceLocation& where);
  DistributedDataset first_pass_of(const Dataset& data, const FitOptions& options) const;
  internal::CompiledModel& compiled_model(std::string_view who) const;
  void require_own_strategy(std::string_view who) const;
  std::string memory_text() const;
  void compile_losses(const CompileOptions& options, internal::CompiledModel& compiled) const;
  void compile_metrics(const CompileOptions& options, internal::CompiledModel& compiled) const;

  std::shared_ptr<State> model_state_;
};

/// Loads a model that Model::save() wrote: a Sequential, a Functional or a registered class.
/// Creates it in the current strategy's scope, which may differ from the strategy under which it
/// was saved. Further training gives results bit-identical to those of the saved model. Register
/// custom layers and metrics first, with register_layer() and register_metric(). Throws kNotFound,
/// naming the layer, if a layer is not registered; kInvalidArgument for a file without a model or
/// with unknown options; kDataLoss for a damaged file; and kUnimplemented for a file of a later
/// version. Collective: every worker must call it.
std::shared_ptr<Model> load_model(const std::string& path,
                                  const SourceLocation& where = SourceLocation::current());

/// Exports the inference computation of a Sequential or Functional, with its current weights, as an
/// ONNX file (opset 17). Inputs ("input", or their names) and outputs are float32 [batch,
/// example...] with any batch size; images stay [batch, height, width, channels]. Dropout and noise
/// are omitted. Throws kUnimplemented, naming the layer or option, if it has no ONNX export or a
/// layer does not compute in float32. Collective: every worker must call it; the chief writes.
void export_onnx(const Model& model, const std::string& path,
                 const SourceLocation& where = SourceLocation::current());

}  // namespace tutti
