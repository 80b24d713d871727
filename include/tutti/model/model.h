// The model: layers that are trained, evaluated and asked as one.
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

/// What Model::compile() takes: tf.keras.Model.compile. Names are looked up at once
/// (kInvalidArgument lists those there are).
struct CompileOptions {
  /// By name, or as options: `AdamOptions{.learning_rate = 1e-3}`.
  OptimizerSpec optimizer = "sgd";
  /// None: only what layers add with add_loss() and regularizers is minimised.
  std::optional<Loss> loss = std::nullopt;
  /// These do not use sample weights, the weighted ones do; means of both leave out the steps that
  /// masks leave out (Keras's rules). A name that is taken gets "weighted_" in front, or a number.
  std::vector<MetricSpec> metrics = {};
  std::vector<MetricSpec> weighted_metrics = {};
  /// For models with several outputs, in their order: their losses, the factors with which they add
  /// up (default 1), their metrics, and their weighted metrics.
  std::vector<Loss> losses = {};
  std::vector<double> loss_weights = {};
  std::vector<std::vector<MetricSpec>> output_metrics = {};
  std::vector<std::vector<MetricSpec>> output_weighted_metrics = {};
  /// Steps between two looks at logs: callbacks and progress see every so many batches at once.
  std::int64_t steps_per_execution = 1;
  /// Under the policy mixed_float16 an optimizer without a loss scale gets a dynamic one.
  bool auto_scale_loss = true;
};

/// What is validated after each epoch: a batched dataset, or tensors.
struct ValidationData {
  ValidationData() = default;
  ValidationData(Dataset data) : dataset(std::move(data)) {}
  ValidationData(Tensor x, Tensor y) : features(std::move(x)), labels(std::move(y)) {}
  std::optional<Dataset> dataset = std::nullopt;
  Tensor features = {};
  Tensor labels = {};
};

/// What Model::fit() takes: tf.keras.Model.fit. The same on all workers: what is shown is
/// fetched from all of them.
struct FitOptions {
  /// Number of the last epoch, plus one; numbers start at initial_epoch.
  std::int64_t epochs = 1;
  /// For tensors alone, over all replicas: datasets are batched already (kInvalidArgument).
  /// Default: 32, or with steps_per_epoch as many rows as make a pass of so many batches.
  std::optional<std::int64_t> batch_size = std::nullopt;
  ValidationData validation_data = {};  // `{x, y}`, or a batched dataset; none: no validation
  std::vector<AnyCallback> callbacks = {};
  /// Global batches of an epoch; default: a pass over the dataset, which must end
  /// (kInvalidArgument). With it an epoch goes on where the last one ended, and a new pass begins
  /// when one ends: in the middle of an epoch with a warning.
  std::optional<std::int64_t> steps_per_epoch = std::nullopt;
  /// Epochs below `epochs` remain; where none does, fit() warns and trains nothing.
  std::int64_t initial_epoch = 0;
  Verbosity verbose = Verbosity::kProgress;
  /// Tensors are shuffled, differently each epoch, by the global seed.
  bool shuffle = true;
  /// For tensors alone: [rows], or [rows, steps] for outputs [rows, steps, ...]. Datasets have
  /// weights as their third component (kInvalidArgument).
  Tensor sample_weight = {};
  /// Examples of a class count as much as it weighs (1 when it is not listed), in the loss of
  /// training and in weighted metrics. Labels are class numbers or one-hot; one output.
  std::map<std::int64_t, double> class_weight = {};
  /// Validation takes place after every so many epochs.
  std::int64_t validation_freq = 1;
  /// Global batches of a validation, each time from the first one on; default: a pass over
  /// validation_data, which must end (kInvalidArgument).
  std::optional<std::int64_t> validation_steps = std::nullopt;
};

/// What Model::evaluate() takes.
struct EvaluateOptions {
  /// For tensors alone, as in FitOptions; default: 32.
  std::optional<std::int64_t> batch_size = std::nullopt;
  std::vector<AnyCallback> callbacks = {};
  Verbosity verbose = Verbosity::kSilent;
  /// For tensors alone, as in FitOptions.
  Tensor sample_weight = {};
  /// The first so many global batches; default: all, which must end (kInvalidArgument).
  std::optional<std::int64_t> steps = std::nullopt;
};

/// What Model::save() takes.
struct SaveOptions {
  /// Also what compile() was given, so that the loaded model is compiled. Without: for losses and
  /// metrics that are functions of one's own.
  bool compile_arguments = true;
};

/// What Model::predict() takes.
struct PredictOptions {
  /// For tensors alone, as in FitOptions; default: 32.
  std::optional<std::int64_t> batch_size = std::nullopt;
  /// The first so many global batches; default: all, which must end (kInvalidArgument).
  std::optional<std::int64_t> steps = std::nullopt;
};

/// Layers with compile, fit, evaluate and predict. Derive from it and write call() (add_layer() in
/// the constructor makes the weights), or use Sequential. It belongs to the strategy in whose scope
/// it was made, which must outlive its use; fit, evaluate and predict may be called outside. A
/// class with several inputs or outputs says so in its constructor: set_built({shapes of inputs},
/// {shapes of outputs}). Copies share everything. One user thread. keras.Model.
class Model : public Layer {
 public:
  /// Makes optimizer and metrics, in the scope of the model's strategy. Throws kFailedPrecondition
  /// in a callback of fit() or evaluate(), and inside the scope of another strategy, naming both;
  /// kInvalidArgument for LossReduction
  /// kNone and for a metric object of another strategy.
  void compile(CompileOptions options);

  /// Trains. Each global batch is one step: every replica takes its slice, the loss is divided by
  /// the true number of rows of the global batch, gradients are summed. `data` is batched by the
  /// GLOBAL batch. Reports "loss" (mean over examples, regularisation included), metrics, and both
  /// with "val_".
  History fit(const Dataset& data, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());
  History fit(DistributedDataset data, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());
  History fit(const Tensor& x, const Tensor& y, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());
  /// Several inputs or outputs: elements of a dataset are inputs, labels, then weights (one for all
  /// outputs, or one each).
  History fit(const std::vector<Tensor>& x, const std::vector<Tensor>& y, FitOptions options = {},
              const SourceLocation& where = SourceLocation::current());

  /// Loss and metrics over all examples, each counted once, exact also with a ragged last batch.
  Logs evaluate(const Dataset& data, EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());
  Logs evaluate(DistributedDataset data, EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());
  Logs evaluate(const Tensor& x, const Tensor& y, EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());
  Logs evaluate(const std::vector<Tensor>& x, const std::vector<Tensor>& y,
                EvaluateOptions options = {},
                const SourceLocation& where = SourceLocation::current());

  /// Outputs for all examples [rows, ...], in their order, in the host's memory. (Of data sharded
  /// by an AutoShardPolicy: in the order of steps, and in each of the replicas of all workers.)
  /// Needs no compile().
  Tensor predict(const Dataset& data, PredictOptions options = {},
                 const SourceLocation& where = SourceLocation::current());
  Tensor predict(DistributedDataset data, PredictOptions options = {},
                 const SourceLocation& where = SourceLocation::current());
  Tensor predict(const Tensor& x, PredictOptions options = {},
                 const SourceLocation& where = SourceLocation::current());
  /// All outputs of a model that has several.
  std::vector<Tensor> predict_all(const std::vector<Tensor>& x, PredictOptions options = {},
                                  const SourceLocation& where = SourceLocation::current());
  std::vector<Tensor> predict_all(DistributedDataset data, PredictOptions options = {},
                                  const SourceLocation& where = SourceLocation::current());

  /// A table of layers, their output shapes and numbers of parameters, as Keras prints it; below,
  /// the bytes that each replica holds.
  std::string summary() const;
  /// The layers as a graph in the language DOT: `dot -Tsvg`.
  std::string to_dot() const;

  /// The whole model in one file, which load_model() makes it of again: layers with their options,
  /// weights, what compile() was given, and all that checkpoint() holds. The file is that
  /// checkpoint, a safetensors file; the architecture is JSON among its metadata. Throws
  /// kUnimplemented naming a layer, loss or metric that does not say how it is made. All workers
  /// call it.
  void save(const std::string& path, SaveOptions options = {},
            const SourceLocation& where = SourceLocation::current());
  /// Weights alone, a safetensors file. Loading takes weights from whole checkpoints, too, and from
  /// files of other frameworks: `load_weights(path, {.rename = {{"fc1.weight", "dense/kernel"}},
  /// .transpose = {"kernel"}, .strict = false})`.
  void save_weights(const std::string& path,
                    const SourceLocation& where = SourceLocation::current()) const;
  void load_weights(const std::string& path, LoadWeightsOptions options = {});
  /// Everything that training goes on from: weights, optimizer, the strategy's step, the number of
  /// epochs trained. After restoring, fit({.initial_epoch = epochs_trained()}) continues.
  Checkpoint checkpoint();
  /// For callbacks, while fit() runs: all that it goes on from, beside checkpoint() where it is,
  /// the position of its data, what metrics have gathered, the state of callbacks. To be used while
  /// it runs, at the moments that Callback names. Throws kFailedPrecondition outside fit().
  Checkpoint fit_checkpoint();

  bool compiled() const;
  /// Throw kFailedPrecondition before compile().
  Optimizer& optimizer();
  const Loss& loss() const;
  /// "loss", then the metrics: what evaluate() reports.
  std::vector<std::string> metrics_names() const;
  /// Which values of this name of the logs ("loss", "val_auc") are better; kUnknown for names that
  /// are not among metrics_names(), and for metrics that do not say.
  MetricDirection metric_direction(std::string_view name) const;

  /// Returns true while a fit() with validation_data runs (for callbacks).
  bool has_validation() const;
  /// Returns the replicas, of all workers, whose part of the loss of this epoch (or evaluation) is
  /// NaN or infinite. Collective: every worker must call it.
  std::vector<int> replicas_without_finite_loss() const;
  /// Lets fit end after the running step (for callbacks, on all workers).
  void stop_training();
  /// Lets fit return after the running batch, in the middle of the epoch: it is to be continued
  /// from fit_checkpoint() (for callbacks, on all workers).
  void interrupt_training();
  /// Epochs that fit() has finished; also selects the order of a shuffled dataset.
  std::int64_t epochs_trained() const;
  Strategy& strategy() const;

  /// What is known of a result: the layer that gives it, and its activation.
  struct Output {
    std::string name;
    std::string activation;
  };
  virtual std::vector<Output> outputs() const;
  /// Names of two layers, of which the second takes a result of the first. Empty where the model's
  /// call() alone knows.
  using Edge = std::pair<std::string, std::string>;
  virtual std::vector<Edge> edges() const { return {}; }

 protected:
  /// A name that is given stands in front of the names of weights ("encoder/dense/kernel").
  explicit Model(std::string name = "", std::optional<Shape> input_shape = std::nullopt);
  /// For layers in layers; a model makes its weights in its constructor.
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

/// The model of a file of Model::save(), in the current strategy's scope, whatever strategy it was
/// saved under: a Sequential, a Functional or a registered class. It goes on with the bits that the
/// saved one would go on with. Layers and metrics of your own: register_layer() and
/// register_metric() first. Throws kNotFound naming a layer that is not registered,
/// kInvalidArgument for a file without a model or with options that are unknown, kDataLoss for a
/// damaged one, kUnimplemented for one of a later version. All workers call it.
std::shared_ptr<Model> load_model(const std::string& path,
                                  const SourceLocation& where = SourceLocation::current());

/// Writes what a Sequential or Functional computes in inference, with its weights as they are now,
/// as an ONNX file (opset 17). Inputs ("input", or their names) and outputs are float32 [batch,
/// example...] with any batch; pictures are [batch, height, width, channels] there, too. Dropout
/// and noise are left out. Throws kUnimplemented naming a layer or option that has no form there,
/// and a layer that does not compute in float32. All workers call it; the chief writes.
void export_onnx(const Model& model, const std::string& path,
                 const SourceLocation& where = SourceLocation::current());

}  // namespace tutti
