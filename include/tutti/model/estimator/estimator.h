// The Estimator: training, evaluation and prediction of a function, from and to checkpoints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/model/estimator/hooks.h"
#include "tutti/model/logs.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// What a model function is called for. tf.estimator.ModeKeys.
enum class EstimatorMode { kTrain, kEval, kPredict };

/// What a model function makes of a batch; what the mode does not need may be left out.
/// tf.estimator.EstimatorSpec.
struct EstimatorSpec {
  /// kPredict: [rows, ...].
  Tensor predictions = {};
  /// kTrain, kEval: per example ([rows, ...]), of which the mean over the global batch is taken; or
  /// [], the mean of this replica's rows, which is divided by the number of replicas.
  Tensor loss = {};
  /// kTrain: by name, or as options. It takes the place of tf's train_op.
  std::optional<OptimizerSpec> optimizer = std::nullopt;
  /// kEval: values of which the mean over all batches is a result, by name: per example, or [].
  std::vector<std::pair<std::string, Tensor>> eval_metrics = {};
};

/// Makes a model (or variables) and calls it. The function runs for each batch of each replica, in
/// the replica, on any thread; what it makes there finds the variables of the first call, so it
/// makes the same ones in the same order in every mode, and keeps none. `labels` is undefined
/// where the data have none.
using ModelFn =
    std::function<EstimatorSpec(const Tensor& features, const Tensor& labels, EstimatorMode mode)>;

/// `[] { return dataset; }`, or a function of an InputContext. Called once per worker, and gives
/// elements {features, labels} batched by the PER-REPLICA batch, each of which is one replica's.
class InputFn {
 public:
  template <class Function>
  requires std::invocable<const Function&> InputFn(Function function)
      : function_([function = std::move(function)](const InputContext&) { return function(); }) {}
  template <class Function>
  requires std::invocable<const Function&, const InputContext&> InputFn(Function function)
      : function_(std::move(function)) {}
  Dataset operator()(const InputContext& context) const { return function_(context); }

 private:
  std::function<Dataset(const InputContext&)> function_;
};

/// tf.estimator.RunConfig. A number of steps that is 0 turns its hook off.
struct RunConfig {
  /// Folder for checkpoints and TensorBoard's events. Not empty.
  std::string model_dir;
  /// Of train(), and of evaluate() and predict(); none: one replica, on the first device.
  std::shared_ptr<Strategy> train_distribute = nullptr;
  std::shared_ptr<Strategy> eval_distribute = nullptr;
  /// Steps between two checkpoints; the last step is saved in any case but 0.
  std::int64_t save_checkpoints_steps = 500;
  int keep_checkpoint_max = 5;  // 0: all
  std::int64_t save_summary_steps = 100;
  std::int64_t log_step_count_steps = 100;
};

/// Of Estimator::train(). Without steps and max_steps it ends with the data, or by a hook: data
/// that never end need one of them.
struct EstimatorTrainOptions {
  std::optional<std::int64_t> steps = std::nullopt;      // of this call
  std::optional<std::int64_t> max_steps = std::nullopt;  // of all calls, earlier runs included
  std::vector<std::shared_ptr<SessionRunHook>> hooks = {};
};

/// Of Estimator::evaluate() and predict().
struct EstimatorEvalOptions {
  std::optional<std::int64_t> steps = std::nullopt;  // none: all data, which must end
  std::string checkpoint_path = "";                  // empty: the newest of the model_dir
};

/// Trains, evaluates and asks a model function. Each call makes the variables anew, with the
/// strategy of its kind, and gives them the values of the newest checkpoint, so that a program that
/// is started again goes on where it was saved; its data begin anew (tf's rule). Strategies with
/// several workers: all make the same calls. Not inside a scope or replica (kFailedPrecondition).
/// One user thread. tf.estimator.Estimator.
class Estimator {
 public:
  /// `warm_start_from`: a checkpoint, or a folder of them, whose weights the first train() begins
  /// with where model_dir has no checkpoint. Throws kInvalidArgument for an empty model_dir and
  /// negative numbers.
  Estimator(ModelFn model_fn, RunConfig config, std::string warm_start_from = "");

  /// Throws kInvalidArgument for steps that are not positive, for data without a batch, and for a
  /// model function that gives no loss or optimizer; kOutOfRange for a loss that is not finite.
  Estimator& train(const InputFn& input_fn, EstimatorTrainOptions options = {});
  /// For a client that drives a cluster: train_distribute is a ParameterServerStrategy whose tasks
  /// are coordinated, and all tasks run the program up to here. Workers and servers serve until the
  /// client, the chief, is done, and get the exit code for this process; the client gets nothing,
  /// at once, and goes on with train_on_workers(): `if (const auto code =
  /// estimator.serve(input_fn)) return *code;`. Each worker reads what `input_fn` gives there.
  /// Without a cluster the workers are threads. Once; throws kInvalidArgument for another strategy,
  /// and as ClusterCoordinator.
  std::optional<int> serve(const InputFn& input_fn);
  /// What train() does, by the workers that serve(), asynchronously: one step of one worker after
  /// the other counts, and a lost worker's are made by others. Ends also when a worker has no data
  /// left; a hook that asks to stop is obeyed when the steps under way, two per worker, are done.
  Estimator& train_on_workers(EstimatorTrainOptions options = {});
  /// "loss" and the metrics, means over all examples, then "global_step"; also for TensorBoard in
  /// model_dir/eval. kNotFound where there is no checkpoint, as predict().
  Logs evaluate(const InputFn& input_fn, EstimatorEvalOptions options = {});
  /// The predictions for all rows, in their order, on the host.
  Tensor predict(const InputFn& input_fn, EstimatorEvalOptions options = {});

  const std::string& model_dir() const { return config_.model_dir; }
  const RunConfig& config() const { return config_; }
  /// Of the last call, which made them, with the values at its end.
  const std::vector<Variable>& variables() const { return variables_; }
  /// Updates so far, of the last call; 0 before.
  std::int64_t global_step() const { return global_step_; }

 private:
  struct Graph;
  struct Run;
  struct Workers;
  using Step = std::function<void(Graph& graph, const PerReplica<Batch>& batch)>;
  Graph make_graph(Strategy& strategy, const Batch& batch, EstimatorMode mode) const;
  void restore_weights(const Graph& graph, const std::string& path, std::string_view who);
  void run_eval(const InputFn& input_fn, const EstimatorEvalOptions& options, EstimatorMode mode,
                const Step& step);

  ModelFn model_fn_;
  RunConfig config_;
  std::string warm_start_from_;
  std::vector<Variable> variables_;
  std::int64_t global_step_ = 0;
  std::shared_ptr<Workers> workers_;  // of serve()
};

/// What train_and_evaluate() trains: tf.estimator.TrainSpec.
struct TrainSpec {
  InputFn input_fn;
  std::int64_t max_steps = 0;
  std::vector<std::shared_ptr<SessionRunHook>> hooks = {};
};
/// What it evaluates after each checkpoint: tf.estimator.EvalSpec.
struct EvalSpec {
  InputFn input_fn;
  std::optional<std::int64_t> steps = 100;
};

/// Trains up to max_steps, and evaluates whenever save_checkpoints_steps more are saved, and at the
/// end; returns the last result. tf.estimator.train_and_evaluate, in the processes that train.
Logs train_and_evaluate(Estimator& estimator, const TrainSpec& train, const EvalSpec& eval);

}  // namespace tutti
