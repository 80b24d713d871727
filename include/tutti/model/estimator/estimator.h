// Estimator: trains, evaluates and predicts with a model function, from and to checkpoints.
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

/// State of a running train(), and the requests that a hook can make. tf's SessionRunContext.
struct SessionRunContext {
  std::int64_t global_step = 0;   // updates so far, including earlier runs
  double loss = 0.0;              // of the last step, over all replicas; 0 before the first
  bool is_chief = true;           // the worker that writes and logs
  std::string model_dir;          // of the Estimator
  std::function<void()> save;     // saves this step, once; collective
  bool is_asked_to_stop = false;  // set by request_stop()

  /// Ends this train() after the step that was just done.
  void request_stop() { is_asked_to_stop = true; }
};

/// Hook of Estimator::train(). Called on its thread, outside replicas, in list order, on all
/// workers alike. tf.estimator.SessionRunHook.
class SessionRunHook {
 public:
  virtual ~SessionRunHook() = default;
  /// Called before the first step (variables have values), after each step, after the last one.
  virtual void begin(SessionRunContext& /*context*/) {}
  virtual void after_run(SessionRunContext& /*context*/) {}
  virtual void end(SessionRunContext& /*context*/) {}
};

/// Ends training after `last_step` updates in total, or after `num_steps` in this train(). Throws
/// kInvalidArgument unless exactly one of them is given.
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

/// Checks the loss of each step. If it is NaN or infinite, throws kOutOfRange naming the step, or
/// only ends training. Every train() has this hook. tf's NanTensorHook.
class NanTensorHook : public SessionRunHook {
 public:
  explicit NanTensorHook(bool fail_on_nan_loss = true) : fails_(fail_on_nan_loss) {}
  void after_run(SessionRunContext& context) override;

 private:
  bool fails_;
};

/// Saves every `save_steps` steps and at the end. RunConfig::save_checkpoints_steps.
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

/// Writes the loss for TensorBoard into the model_dir every `save_steps` steps.
/// RunConfig::save_summary_steps.
class SummarySaverHook : public SessionRunHook {
 public:
  explicit SummarySaverHook(std::int64_t save_steps) : save_steps_(save_steps) {}
  void after_run(SessionRunContext& context) override;

 private:
  std::int64_t save_steps_;
  std::optional<EventFileWriter> events_;  // opened by the chief on the first value
};

/// Logs loss and step every `every_n_steps` steps. RunConfig::log_step_count_steps.
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

/// Purpose for which a model function is called. tf.estimator.ModeKeys.
enum class EstimatorMode { kTrain, kEval, kPredict };

/// Result of a model function for a batch; values that the mode does not need may be omitted.
/// tf.estimator.EstimatorSpec.
struct EstimatorSpec {
  /// kPredict: [rows, ...].
  Tensor predictions = {};
  /// kTrain, kEval: one loss per example ([rows, ...]), averaged over the global batch; or [], the
  /// mean over this replica's rows, which is divided by the number of replicas.
  Tensor loss = {};
  /// kTrain: name or options. Replaces tf's train_op.
  std::optional<OptimizerSpec> optimizer = std::nullopt;
  /// kEval: named values, per example or [], whose means over all batches are results.
  std::vector<std::pair<std::string, Tensor>> eval_metrics = {};
};

/// Creates a model (or variables) and calls it. Runs for each batch of each replica, in the
/// replica, on any thread. Each call receives the variables of the first one, so it must create the
/// same ones in the same order in every mode, and must not keep them. `labels` is undefined if the
/// data has none.
using ModelFn =
    std::function<EstimatorSpec(const Tensor& features, const Tensor& labels, EstimatorMode mode)>;

/// `[] { return dataset; }`, or a function of an InputContext. Called once per worker; returns
/// elements {features, labels} batched by the PER-REPLICA batch size, each for one replica.
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

/// tf.estimator.RunConfig. A step interval of 0 disables its hook.
struct RunConfig {
  /// Folder for checkpoints and TensorBoard's events. Not empty.
  std::string model_dir;
  /// Strategies; default: one replica on the first device. eval_distribute is for predict(), too.
  std::shared_ptr<Strategy> train_distribute = nullptr;
  std::shared_ptr<Strategy> eval_distribute = nullptr;
  /// Steps between two checkpoints. Unless it is 0, the last step is also saved.
  std::int64_t save_checkpoints_steps = 500;
  int keep_checkpoint_max = 5;  // 0: all
  std::int64_t save_summary_steps = 100;
  std::int64_t log_step_count_steps = 100;
};

/// Options of Estimator::train(). Without steps and max_steps it ends with the data or by a hook;
/// infinite data requires one of these.
struct EstimatorTrainOptions {
  std::optional<std::int64_t> steps = std::nullopt;      // of this call
  std::optional<std::int64_t> max_steps = std::nullopt;  // of all calls, earlier runs included
  std::vector<std::shared_ptr<SessionRunHook>> hooks = {};
};

/// Options of Estimator::evaluate() and predict().
struct EstimatorEvalOptions {
  std::optional<std::int64_t> steps = std::nullopt;  // default: all data, which must be finite
  std::string checkpoint_path = "";                  // empty: the newest one in model_dir
};

/// Trains, evaluates and predicts with a model function. Each call creates its variables under
/// train_distribute or eval_distribute, with the values of the newest checkpoint. A restarted
/// program thus continues from there, but its data starts from the beginning (tf's rule). All
/// workers must make the same calls. Throws kFailedPrecondition inside a scope or replica. Not
/// thread-safe. tf.estimator.Estimator.
class Estimator {
 public:
  /// `warm_start_from`: a checkpoint, or a folder of them, with initial weights for the first
  /// train() if model_dir has no checkpoint. Throws kInvalidArgument for an empty model_dir and
  /// negative numbers.
  Estimator(ModelFn model_fn, RunConfig config, std::string warm_start_from = "");

  /// Trains the model function. Throws kInvalidArgument for steps that are not positive, data
  /// without a batch, and no loss or optimizer; kOutOfRange for a loss that is not finite.
  Estimator& train(const InputFn& input_fn, EstimatorTrainOptions options = {});
  /// Prepares training by the workers of a cluster; train_distribute must be a coordinated
  /// ParameterServerStrategy. All tasks run the program up to this call. Workers and servers serve
  /// until the client (the chief) is done, then get the exit code of their process. On the client
  /// it returns nullopt at once, and the client continues with train_on_workers(): `if (const auto
  /// code = estimator.serve(input_fn)) return *code;`. Each worker reads the data of its own
  /// `input_fn`. Without a cluster the workers are threads. Throws kInvalidArgument for another
  /// strategy, kFailedPrecondition on a second call, and the errors of ClusterCoordinator.
  std::optional<int> serve(const InputFn& input_fn);
  /// Same as train(), but asynchronous, on the workers that serve(). Each step of a worker counts
  /// as one step; other workers repeat those of a lost worker. Also ends when a worker runs out of
  /// data. If a hook requests a stop, the steps in flight (two per worker) are finished first.
  Estimator& train_on_workers(EstimatorTrainOptions options = {});
  /// Returns "loss" and the metrics, means over all examples, and "global_step"; also writes them
  /// for TensorBoard to model_dir/eval. Throws kNotFound without a checkpoint, as does predict().
  Logs evaluate(const InputFn& input_fn, EstimatorEvalOptions options = {});
  /// Returns the predictions for all rows, in their order, on the host.
  Tensor predict(const InputFn& input_fn, EstimatorEvalOptions options = {});

  const std::string& model_dir() const { return config_.model_dir; }
  const RunConfig& config() const { return config_; }
  /// Variables of the last call, with their values at its end.
  const std::vector<Variable>& variables() const { return variables_; }
  /// Number of updates so far, as of the last call; 0 before.
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
  std::shared_ptr<Workers> workers_;  // set by serve()
};

/// Training part of train_and_evaluate(). tf.estimator.TrainSpec.
struct TrainSpec {
  InputFn input_fn;
  std::int64_t max_steps = 0;
  std::vector<std::shared_ptr<SessionRunHook>> hooks = {};
};
/// Evaluation part of train_and_evaluate(), run after each checkpoint. tf.estimator.EvalSpec.
struct EvalSpec {
  InputFn input_fn;
  std::optional<std::int64_t> steps = 100;
};

/// Trains up to max_steps, evaluates after every save_checkpoints_steps steps and at the end, and
/// returns the last result. tf.estimator.train_and_evaluate, within the processes that train.
Logs train_and_evaluate(Estimator& estimator, const TrainSpec& train, const EvalSpec& eval);

}  // namespace tutti
