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

#include "tutti/core/clock.h"
#include "tutti/model/callback.h"
#include "tutti/model/log_files.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

/// What a hook sees of a train() that runs, and may ask of it. tf's SessionRunContext.
struct SessionRunContext {
  std::int64_t global_step = 0;   // updates so far, those of earlier runs included
  double loss = 0.0;              // of the last step, over all replicas; 0 before the first
  bool is_chief = true;           // of several workers the one that writes and logs
  std::string model_dir;          // of the Estimator
  std::function<void()> save;     // a checkpoint of this step, once; a call of all workers
  bool is_asked_to_stop = false;  // by request_stop()

  /// The step that is done was the last one of this train().
  void request_stop() { is_asked_to_stop = true; }
};

/// Called by Estimator::train() on its thread, outside replicas, in the order of the list; on all
/// workers alike. tf.estimator.SessionRunHook.
class SessionRunHook {
 public:
  virtual ~SessionRunHook() = default;
  /// Variables have their values, no step is done; after each step; after the last one.
  virtual void begin(SessionRunContext& /*context*/) {}
  virtual void after_run(SessionRunContext& /*context*/) {}
  virtual void end(SessionRunContext& /*context*/) {}
};

/// Ends training when `last_step` updates are done in all, or `num_steps` in this train(). Throws
/// kInvalidArgument unless one of both is given.
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

/// Looks at the loss of each step: one that is NaN or infinite is kOutOfRange naming the step, or
/// only ends training. Every train() has one. tf's NanTensorHook.
class NanTensorHook : public SessionRunHook {
 public:
  explicit NanTensorHook(bool fail_on_nan_loss = true) : fails_(fail_on_nan_loss) {}
  void after_run(SessionRunContext& context) override;

 private:
  bool fails_;
};

/// Saves every so many steps and at the end. RunConfig::save_checkpoints_steps.
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

/// Writes the loss for TensorBoard into the model_dir, every so many steps.
/// RunConfig::save_summary_steps.
class SummarySaverHook : public SessionRunHook {
 public:
  explicit SummarySaverHook(std::int64_t save_steps) : save_steps_(save_steps) {}
  void after_run(SessionRunContext& context) override;

 private:
  std::int64_t save_steps_;
  std::optional<EventFileWriter> events_;  // of the chief, from the first value on
};

/// A line of the log with loss and step every so many steps. RunConfig::log_step_count_steps.
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
