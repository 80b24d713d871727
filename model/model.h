// The model: layers that are trained, evaluated and asked as one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/model/callback.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/loss_classes.h"
#include "tutti/model/layers/metric_classes.h"
#include "tutti/optimizer/optimizer_spec.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

namespace internal {
struct CompiledModel;
class FitLoop;
}  // namespace internal

struct CompileOptions {
  OptimizerSpec optimizer = "sgd";
  /// None: only what layers add with add_loss() and regularizers is minimised.
  std::optional<Loss> loss = std::nullopt;
  /// These do not use sample weights, the weighted ones do (Keras's rule).
  std::vector<MetricSpec> metrics = {};
  std::vector<MetricSpec> weighted_metrics = {};
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

/// kProgress: one line per epoch (a terminal: rewritten while it runs).
enum class Verbosity { kSilent, kProgress };

struct FitOptions {
  /// Number of the last epoch, plus one; numbers start at initial_epoch.
  std::int64_t epochs = 1;
  /// Of tensors, over all replicas; datasets are batched already.
  std::int64_t batch_size = 32;
  ValidationData validation_data = {};
  std::vector<AnyCallback> callbacks = {};
  /// Global batches of an epoch; default: a pass over the dataset. With it an epoch goes on where
  /// the last one ended, and a new pass begins when one ends.
  std::optional<std::int64_t> steps_per_epoch = std::nullopt;
  std::int64_t initial_epoch = 0;
  Verbosity verbose = Verbosity::kProgress;
  /// Tensors are shuffled, differently each epoch, by the global seed.
  bool shuffle = true;
  /// Of tensors: [rows].
  Tensor sample_weight = {};
};

struct EvaluateOptions {
  std::int64_t batch_size = 32;
  std::vector<AnyCallback> callbacks = {};
  Verbosity verbose = Verbosity::kSilent;
  Tensor sample_weight = {};
};

struct PredictOptions {
  std::int64_t batch_size = 32;
};

/// Layers with compile, fit, evaluate and predict. Derive from it and write call() (add_layer() in
/// the constructor makes the weights), or use Sequential. It belongs to the strategy in whose scope
/// it was made, which must outlive its use; fit, evaluate and predict may be called outside. Copies
/// share everything. One user thread. keras.Model.
class Model : public Layer {
 public:
  /// Makes optimizer and metrics, in the scope of the model's strategy. Throws kFailedPrecondition
  /// naming both strategies inside the scope of another one; kInvalidArgument for LossReduction
  /// kNone and for a metric object of another strategy.
  void compile(CompileOptions options);

  /// Trains. Each global batch is one step: every replica takes its slice, the loss is divided by
  /// the true number of rows of the global batch, gradients are summed. `data` is batched by the
  /// GLOBAL batch. Reports "loss" (mean over examples, regularisation included), metrics, and both
  /// with "val_".
  History fit(const Dataset& data, FitOptions options = {});
  History fit(DistributedDataset data, FitOptions options = {});
  History fit(const Tensor& x, const Tensor& y, FitOptions options = {});

  /// Loss and metrics over all examples, each counted once, exact also with a ragged last batch.
  Logs evaluate(const Dataset& data, EvaluateOptions options = {});
  Logs evaluate(DistributedDataset data, EvaluateOptions options = {});
  Logs evaluate(const Tensor& x, const Tensor& y, EvaluateOptions options = {});

  /// Outputs for all examples [rows, ...], in their order. Needs no compile().
  Tensor predict(const Dataset& data, PredictOptions options = {});
  Tensor predict(DistributedDataset data);
  Tensor predict(const Tensor& x, PredictOptions options = {});

  /// A table of layers, their output shapes and numbers of parameters, as Keras prints it.
  std::string summary() const;

  /// Weights alone, a safetensors file. Loading takes weights from whole checkpoints, too.
  void save_weights(const std::string& path) const;
  void load_weights(const std::string& path);
  /// Everything that training goes on from: weights, optimizer, the strategy's step, the number of
  /// epochs trained. After restoring, fit({.initial_epoch = epochs_trained()}) continues.
  Checkpoint checkpoint();

  bool compiled() const;
  /// Throw kFailedPrecondition before compile().
  Optimizer& optimizer();
  const Loss& loss() const;
  /// "loss", then the metrics: what evaluate() reports.
  std::vector<std::string> metrics_names() const;

  /// Lets fit end after the running step (for callbacks).
  void stop_training();
  /// Epochs that fit() has finished; also selects the order of a shuffled dataset.
  std::int64_t epochs_trained() const;
  Strategy& strategy() const;

 protected:
  /// A name that is given stands in front of the names of weights ("encoder/dense/kernel").
  explicit Model(std::string name = "", std::optional<Shape> input_shape = std::nullopt);
  /// For layers in layers; a model makes its weights in its constructor.
  Shape build(const Shape& input) override;

 private:
  struct State;
  friend class internal::FitLoop;
  internal::CompiledModel& compiled_model(std::string_view who) const;
  void require_own_strategy(std::string_view who) const;

  std::shared_ptr<State> model_state_;
};

}  // namespace tutti
