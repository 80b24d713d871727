// Estimator, which trains, evaluates and predicts with a model function and keeps checkpoints.
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

#include "tutti/core/clock.h"
#include "tutti/model/callback.h"
#include "tutti/model/log_files.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// State of a running train(), and requests that a hook can make. Corresponds to
/// tf.estimator.SessionRunContext.
struct SessionRunContext {
  std::int64_t global_step = 0;   // number of updates so far, including those in earlier runs
  double loss = 0.0;              // loss of the last step over all replicas; initially 0
  bool is_chief = true;           // true on the worker that writes files and logs
  std::string model_dir;          // same as Estimator::model_dir()
  std::function<void()> save;     // function that saves this step, at most once; collective
  bool is_asked_to_stop = false;  // true after request_stop()

  /// Makes train() return after the current step.
  void request_stop() { is_asked_to_stop = true; }
};

/// Interface for hooks of Estimator::train(). Hooks are called in list order on the thread that
/// called train(), outside replicas, on all workers. Corresponds to tf.estimator.SessionRunHook.
class SessionRunHook {
 public:
  virtual ~SessionRunHook() = default;
  /// begin() is called before the first step (variables already have values), after_run() after
  /// each step, and end() after the last step.
  virtual void begin(SessionRunContext& /*context*/) {}
  virtual void after_run(SessionRunContext& /*context*/) {}
  virtual void end(SessionRunContext& /*context*/) {}
};

/// Ends training after `last_step` updates in total, or after `num_steps` updates in this train()
/// call. Throws kInvalidArgument unless exactly one of the options is given.
class StopAtStepHook : public SessionRunHook {
 public:
  struct Options {
    std::optional<std::int64_t> num_steps = std::nullopt;
    std::optional<std::int64_t> last_step = std::nullopt;
  };
  explicit StopAtStepHook(Options options);
  void begin(SessionRunContext& context) override;
  void after_run(SessionRunContext& context) override;

 private:
  Options options_;
  std::int64_t last_step_ = 0;
};

/// Hook that checks the loss of each step; every train() call adds this hook. If the loss is NaN or
/// infinite, throws kOutOfRange, naming the step; if fail_on_nan_loss is false, only ends training.
/// Equivalent of tf's NanTensorHook.
class NanTensorHook : public SessionRunHook {
 public:
  explicit NanTensorHook(bool fail_on_nan_loss = true) : fails_(fail_on_nan_loss) {}
  void after_run(SessionRunContext& context) override;

 private:
  bool fails_;
};

/// Hook that saves a checkpoint every `save_steps` steps and at the end. See
/// RunConfig::save_checkpoints_steps.
class CheckpointSaverHook : public SessionRunHook {
 public:
  explicit CheckpointSaverHook(std::int64_t save_steps) : save_steps_(save_steps) {}
  void begin(SessionRunContext& context) override { saved_step_ = context.global_step; }
  void after_run(SessionRunContext& context) override;
  void end(SessionRunContext& context) override { context.save(); }

 private:
  std::int64_t save_steps_;
  std::int64_t saved_step_ = 0;
};

/// Writes the loss to the model_dir for TensorBoard every `save_steps` steps, like
/// RunConfig::save_summary_steps.
class SummarySaverHook : public SessionRunHook {
 public:
  explicit SummarySaverHook(std::int64_t save_steps) : save_steps_(save_steps) {}
  void after_run(SessionRunContext& context) override;

 private:
  std::int64_t save_steps_;
  std::optional<EventFileWriter> events_;  // opened by the chief when it writes the first value
};

/// Logs the loss and the step every `every_n_steps` steps, like RunConfig::log_step_count_steps.
class LoggingHook : public SessionRunHook {
 public:
  explicit LoggingHook(std::int64_t every_n_steps) : every_(every_n_steps) {}
  void begin(SessionRunContext& context) override;
  void after_run(SessionRunContext& context) override;

 private:
  std::int64_t every_;
  std::int64_t logged_step_ = 0;
  TimePoint logged_;
};

/// Purpose for which a model function is called. Corresponds to tf.estimator.ModeKeys.
enum class EstimatorMode { kTrain, kEval, kPredict };

/// Result of a model function for a batch; values that the mode does not need may be omitted.
/// Corresponds to tf.estimator.EstimatorSpec.
struct EstimatorSpec {
  /// For kPredict: predictions of shape [rows, ...].
  Tensor predictions = {};
  /// For kTrain and kEval: one loss per example, [rows, ...], averaged over the global batch; or
  /// the mean over this replica's rows, [], which is averaged over replicas.
  Tensor loss = {};
  /// For kTrain: the optimizer's name or options. Replaces tf's train_op.
  std::optional<OptimizerSpec> optimizer = std::nullopt;
  /// For kEval: named values of shape [rows] or []. evaluate() returns their means over all
  /// batches.
  std::vector<std::pair<std::string, Tensor>> eval_metrics = {};
};

/// Function that creates a model (or variables) and calls it. Runs for each batch of each replica,
/// in the replica, on any thread. Every call gets the variables that the first call created. All
/// calls must therefore create the same variables in the same order in every mode, and must not
/// keep variables after they return. `labels` is undefined if the data has no labels.
using ModelFn =
    std::function<EstimatorSpec(const Tensor& features, const Tensor& labels, EstimatorMode mode)>;

/// Function without arguments, such as `[] { return dataset; }`, or with an InputContext. Called
/// once per worker; returns a dataset of {features, labels}, batched by the PER-REPLICA batch size.
/// Each element is for one replica.
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

/// Options for Estimator. A step interval of 0 disables its hook. Corresponds to
/// tf.estimator.RunConfig.
struct RunConfig {
  /// Path of the folder for checkpoints and TensorBoard events; must be set.
  std::string model_dir;
  /// Strategies; default: one replica on the first device. evaluate() and predict() use
  /// eval_distribute.
  std::shared_ptr<Strategy> train_distribute = nullptr;
  std::shared_ptr<Strategy> eval_distribute = nullptr;
  /// Number of steps between checkpoints; unless 0, the last step is also saved.
  std::int64_t save_checkpoints_steps = 500;
  int keep_checkpoint_max = 5;  // 0: all
  std::int64_t save_summary_steps = 100;
  std::int64_t log_step_count_steps = 100;
};

/// Options for Estimator::train(). Without steps and max_steps, training ends when the data ends or
/// a hook requests it. For infinite data, set steps or max_steps, or use a hook that requests a
/// stop.
struct EstimatorTrainOptions {
  std::optional<std::int64_t> steps = std::nullopt;  // number of steps of this call
  std::optional<std::int64_t> max_steps =
      std::nullopt;  // total number of steps, including earlier runs
  std::vector<std::shared_ptr<SessionRunHook>> hooks = {};
};

/// Options for Estimator::evaluate() and predict().
struct EstimatorEvalOptions {
  std::optional<std::int64_t> steps = std::nullopt;  // default: all data, which must be finite
  std::string checkpoint_path = "";                  // empty: newest checkpoint in model_dir
};

/// Trains, evaluates and predicts with a model function. Each call creates its variables under
/// train_distribute or eval_distribute, with the values of the newest checkpoint. A restarted
/// program therefore continues from that checkpoint, but reads its data from the beginning, as in
/// tf. All workers must make the same calls. Throws kFailedPrecondition inside a scope or replica.
/// Not thread-safe. Corresponds to tf.estimator.Estimator.
class Estimator {
 public:
  /// `warm_start_from`: a checkpoint, or a folder of checkpoints, with initial weights for the
  /// first train() if model_dir has no checkpoint. Throws kInvalidArgument if `config` has an empty
  /// model_dir or a negative number.
  Estimator(ModelFn model_fn, RunConfig config, std::string warm_start_from = "");

  /// Trains the model function. Throws kInvalidArgument if steps or max_steps is not positive, if
  /// the data has no batches, or if the model function returns no loss or optimizer. Throws
  /// kOutOfRange for a loss that is not finite.
  Estimator& train(const InputFn& input_fn, EstimatorTrainOptions options = {});
  /// Prepares training by the workers of a cluster; train_distribute must be a coordinated
  /// ParameterServerStrategy. All tasks run the program up to this call: `if (const auto code =
  /// estimator.serve(input_fn)) return *code;`. On workers and servers, serves until the chief is
  /// done and returns the exit code for this process. On the chief, returns nullopt at once; the
  /// chief then calls train_on_workers(). Each worker reads the data of its own `input_fn`. Without
  /// a cluster, the workers are threads. Throws kInvalidArgument for another strategy,
  /// kFailedPrecondition on a second call, and the same errors as ClusterCoordinator.
  std::optional<int> serve(const InputFn& input_fn);
  /// Same as train(), but asynchronous, on the workers that called serve(). Each step of a worker
  /// counts as one step; if a worker fails, other workers repeat its steps. Training also ends when
  /// a worker runs out of data. If a hook requests a stop, the running steps (two per worker) are
  /// finished first.
  Estimator& train_on_workers(EstimatorTrainOptions options = {});
  /// Returns "global_step", plus "loss" and the metrics averaged over all examples. Also writes the
  /// values to model_dir/eval for TensorBoard, unless save_summary_steps is 0. Throws kNotFound if
  /// there is no checkpoint.
  Logs evaluate(const InputFn& input_fn, EstimatorEvalOptions options = {});
  /// Returns the predictions for all rows, in row order, in host memory. Throws kNotFound if there
  /// is no checkpoint.
  Tensor predict(const InputFn& input_fn, EstimatorEvalOptions options = {});

  const std::string& model_dir() const { return config_.model_dir; }
  const RunConfig& config() const { return config_; }
  /// Returns the variables of the last call, with their values at the end of that call.
  const std::vector<Variable>& variables() const { return variables_; }
  /// Returns the total number of updates at the end of the last call; 0 before the first call.
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
  std::shared_ptr<Workers> workers_;  // nullptr before serve()
};

/// Options for the training that train_and_evaluate() runs. Corresponds to tf.estimator.TrainSpec.
struct TrainSpec {
  InputFn input_fn;
  std::int64_t max_steps = 0;
  std::vector<std::shared_ptr<SessionRunHook>> hooks = {};
};
/// Options for the evaluation that train_and_evaluate() runs after each checkpoint. Corresponds to
/// tf.estimator.EvalSpec.
struct EvalSpec {
  InputFn input_fn;
  std::optional<std::int64_t> steps = 100;
};

/// Trains up to max_steps, evaluates after every save_checkpoints_steps steps and at the end, and
/// returns the last result. Corresponds to tf.estimator.train_and_evaluate, but evaluates in the
/// processes that train.
Logs train_and_evaluate(Estimator& estimator, const TrainSpec& train, const EvalSpec& eval);

}  // namespace tutti
