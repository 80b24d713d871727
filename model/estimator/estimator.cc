// Estimator: its variables, and the steps of training, evaluation and prediction.
// SPDX-License-Identifier: Apache-2.0
//
// The first call to a model function, on one batch, records the variables that it creates; the
// strategy then creates these variables. In later steps the function receives these variables in
// the recorded order.
#include "tutti/model/estimator/estimator.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "checkpoint/version.h"
#include "core/call_site.h"
#include "core/names.h"
#include "core/thread_random.h"
#include "model/estimator/estimator_graph.h"
#include "strategy/input/input_parts.h"
#include "strategy/variables/sync_on_read_variable.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/model/layers/losses.h"
#include "tutti/strategy/recovery.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {

StopAtStepHook::StopAtStepHook(Options options) : options_(options) {
  if (options_.num_steps.has_value() != options_.last_step.has_value()) return;
  fail(ErrorCode::kInvalidArgument,
       "StopAtStepHook: expected exactly one of num_steps and last_step, got both or neither");
}

void StopAtStepHook::begin(SessionRunContext& context) {
  last_step_ = options_.last_step ? *options_.last_step : context.global_step + *options_.num_steps;
}

void StopAtStepHook::after_run(SessionRunContext& context) {
  if (context.global_step >= last_step_) context.request_stop();
}

void NanTensorHook::after_run(SessionRunContext& context) {
  if (std::isfinite(context.loss)) return;
  const std::string text = concat("the loss of step ", context.global_step, " is ", context.loss);
  if (fails_) {
    fail(ErrorCode::kOutOfRange, "Estimator::train: ", text,
         "; expected a finite loss; try a smaller learning rate or clipping");
  }
  log(LogLevel::kError, concat("Estimator::train: ", text, "; training ends"));
  context.request_stop();
}

void CheckpointSaverHook::after_run(SessionRunContext& context) {
  if (context.global_step - saved_step_ < save_steps_) return;
  context.save();
  saved_step_ = context.global_step;
}

void SummarySaverHook::after_run(SessionRunContext& context) {
  if (!context.is_chief || context.global_step % save_steps_ != 0) return;
  if (!events_) events_.emplace(context.model_dir);
  events_->scalar("loss", context.global_step, context.loss);
}

void LoggingHook::begin(SessionRunContext& context) {
  logged_step_ = context.global_step;
  logged_ = Clock::system().now();
}

void LoggingHook::after_run(SessionRunContext& context) {
  const std::int64_t steps = context.global_step - logged_step_;
  if (!context.is_chief || steps < every_) return;
  const TimePoint now = Clock::system().now();
  log_info(concat("Estimator: step ", context.global_step, ", loss ", context.loss, ", ", steps,
                  " steps in ", seconds_between(logged_, now), " s"));
  logged_step_ = context.global_step;
  logged_ = now;
}

namespace {

/// Creator that creates plain variables and records their arguments.
class Recorder final : public VariableCreator {
 public:
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override {
    record.push_back({initializer, key, options});
    const Device device = current_device();
    return make_local_storage(initializer({device, key}), device, std::move(options));
  }
  std::vector<RecordedVariable> record;
};

/// Creator that returns the existing variables in order.
class Finder final : public VariableCreator {
 public:
  Finder(const std::vector<Variable>& variables, const std::vector<RecordedVariable>& record)
      : variables_(variables), record_(record) {}
  std::shared_ptr<VariableStorage> create(const Variable::Initializer&, const RandomKey&,
                                          VariableOptions options) override {
    if (next_ == record_.size() || record_[next_].options.name != options.name) {
      fail_different(concat("variable '", options.name, "'"));
    }
    return variables_[next_++].shared_storage();
  }
  void require_all() const {
    if (next_ < record_.size()) fail_different("no further variable");
  }

 private:
  [[noreturn]] void fail_different(const std::string& got) const {
    fail(ErrorCode::kFailedPrecondition,
         "Estimator: the model function creates different variables than in its first call: ",
         "expected ",
         next_ < record_.size()
             ? concat("variable ", next_, " to be '", record_[next_].options.name, "'")
             : concat("only ", next_, " variable(s)"),
         ", got ", got, "; create the same layers in the same order in every call");
  }

  const std::vector<Variable>& variables_;
  const std::vector<RecordedVariable>& record_;
  std::size_t next_ = 0;
};

EstimatorSpec call(const ModelFn& model_fn, const Batch& batch, EstimatorMode mode) {
  const internal::NumbersFromZero same_layers;
  return model_fn(batch.features(), batch.has_labels() ? batch.labels() : Tensor(), mode);
}

void check_spec(const EstimatorSpec& spec, EstimatorMode mode) {
  const auto require = [](bool is_given, const char* what) {
    if (is_given) return;
    fail(ErrorCode::kInvalidArgument, "Estimator: expected ", what,
         " in the EstimatorSpec that the model function returns for this mode, got no ", what);
  };
  if (mode == EstimatorMode::kPredict) return require(spec.predictions.defined(), "predictions");
  require(spec.loss.defined(), "loss");
  if (mode == EstimatorMode::kTrain) require(spec.optimizer.has_value(), "optimizer");
}

/// Returns a replica's share of the loss; the shares add up to the loss of the global batch.
Tensor share_of(const Tensor& loss, const Batch& batch, const Strategy& strategy) {
  if (loss.rank() > 0) return compute_average_loss(loss, batch.global_rows());
  return loss * (1.0f / static_cast<float>(strategy.num_replicas_in_sync()));
}

void use_one_device_for(std::shared_ptr<Strategy>& strategy) {
  if (!strategy) strategy = std::make_shared<OneDeviceStrategy>(default_devices().front());
}

void require_positive(std::string_view what, const std::optional<std::int64_t>& number) {
  if (!number || *number > 0) return;
  fail(ErrorCode::kInvalidArgument, "Estimator: ", what, ": expected >= 1, got ", *number);
}

DistributedDataset::Iterator first_batch(DistributedDataset& data) {
  auto iterator = data.begin();
  internal::require(iterator != data.end(),
                    "Estimator: expected data with at least one batch, got none from input_fn");
  return iterator;
}

/// Appends the hooks that RunConfig requests to the caller's hooks.
std::vector<std::shared_ptr<SessionRunHook>> with_own_hooks(
    std::vector<std::shared_ptr<SessionRunHook>> hooks, const RunConfig& config) {
  hooks.push_back(std::make_shared<NanTensorHook>());
  if (config.log_step_count_steps > 0) {
    hooks.push_back(std::make_shared<LoggingHook>(config.log_step_count_steps));
  }
  if (config.save_summary_steps > 0) {
    hooks.push_back(std::make_shared<SummarySaverHook>(config.save_summary_steps));
  }
  if (config.save_checkpoints_steps > 0) {
    hooks.push_back(std::make_shared<CheckpointSaverHook>(config.save_checkpoints_steps));
  }
  return hooks;
}

/// Hook that evaluates every save_checkpoints_steps steps.
class EvaluationHook final : public SessionRunHook {
 public:
  EvaluationHook(Estimator& estimator, const EvalSpec& spec) : estimator_(estimator), spec_(spec) {}
  void begin(SessionRunContext& context) override { evaluated_step_ = context.global_step; }
  void after_run(SessionRunContext& context) override {
    const std::int64_t steps = estimator_.config().save_checkpoints_steps;
    if (steps > 0 && context.global_step - evaluated_step_ >= steps) evaluate(context);
  }
  void end(SessionRunContext& context) override {
    if (context.global_step > evaluated_step_) evaluate(context);
  }
  Logs result;

 private:
  void evaluate(SessionRunContext& context) {
    context.save();
    result = estimator_.evaluate(spec_.input_fn, {.steps = spec_.steps});
    evaluated_step_ = context.global_step;
  }
  Estimator& estimator_;
  const EvalSpec& spec_;
  std::int64_t evaluated_step_ = 0;
};

}  // namespace

EstimatorSpec Estimator::Graph::operator()(const Batch& batch) const {
  Finder finder(variables, record);
  const VariableCreatorScope scope(finder);
  EstimatorSpec spec = call(model_fn, batch, mode);
  finder.require_all();
  check_spec(spec, mode);
  return spec;
}

Tensor Estimator::Graph::train(const Batch& batch) const {
  GradientTape tape;
  const Tensor loss = share_of((*this)(batch).loss, batch, strategy);
  optimizer->minimize(tape, loss);
  return loss;
}

Checkpoint Estimator::Graph::checkpoint() const {
  Checkpoint all(variables, checkpoint_options(strategy));
  if (!optimizer) return all;
  all.add(optimizer->state_variables());
  all.add_state("strategy", {[this] { return strategy.save_state(); },
                             [this](const Json& state) { strategy.restore_state(state); }});
  return all;
}

Estimator::Graph Estimator::make_graph(Strategy& strategy, const Batch& batch,
                                       EstimatorMode mode) const {
  if (has_strategy()) {
    fail(ErrorCode::kFailedPrecondition,
         "Estimator: expected a call outside of scopes and replicas; use "
         "RunConfig::train_distribute");
  }
  Graph graph{strategy, model_fn_, mode, {}, {}, nullptr, {}};
  EstimatorSpec spec;
  {
    Recorder recorder;
    const VariableCreatorScope creator(recorder);
    const DeviceScope device(strategy.replica_devices().front());
    spec = call(model_fn_, batch, mode);
    graph.record = std::move(recorder.record);
  }
  check_spec(spec, mode);
  const auto scope = strategy.scope();
  std::vector<Variable> trained;
  for (const RecordedVariable& each : graph.record) {
    graph.variables.emplace_back(
        VariableCreator::current().create(each.initializer, each.key, each.options));
    if (graph.variables.back().trainable()) trained.push_back(graph.variables.back());
  }
  if (mode == EstimatorMode::kTrain) graph.optimizer = spec.optimizer->make(trained);
  if (mode != EstimatorMode::kEval) return graph;
  graph.metrics.emplace_back("loss");
  for (const auto& [name, value] : spec.eval_metrics) graph.metrics.emplace_back(name);
  return graph;
}

Estimator::Estimator(ModelFn model_fn, RunConfig config, std::string warm_start_from)
    : model_fn_(std::move(model_fn)),
      config_(std::move(config)),
      warm_start_from_(std::move(warm_start_from)) {
  internal::require(!config_.model_dir.empty(), "Estimator: expected a model_dir, got none");
  const std::int64_t least =
      std::min({config_.save_checkpoints_steps, config_.save_summary_steps,
                config_.log_step_count_steps, std::int64_t{config_.keep_checkpoint_max}});
  internal::require(
      least >= 0,
      "Estimator: RunConfig: expected step intervals and keep_checkpoint_max >= 0, got ", least);
  use_one_device_for(config_.train_distribute);
  use_one_device_for(config_.eval_distribute);
}

void Estimator::restore_weights(const Graph& graph, const std::string& path, std::string_view who) {
  const Checkpoint weights(graph.variables, checkpoint_options(graph.strategy));
  const RestoreOptions options{.ignore_unknown = true};
  const bool is_folder =
      std::filesystem::is_directory(path) &&
      !std::filesystem::exists(std::filesystem::path(path) / internal::kIndexName) &&
      !std::filesystem::exists(std::filesystem::path(path) / internal::kEarlierManifestName);
  const auto info = is_folder ? CheckpointManager(weights, path).restore_latest(options)
                              : std::optional(weights.restore(path, options, CallSite::current()));
  if (!info) {
    fail(ErrorCode::kNotFound, "Estimator::", who, ": expected a checkpoint in ", path,
         ", found none; call train() first");
  }
  global_step_ = info->step;
}

void Estimator::Run::check(const EstimatorTrainOptions& options) {
  require_positive("steps", options.steps);
  require_positive("max_steps", options.max_steps);
}

void Estimator::Run::require_end(const EstimatorTrainOptions& options,
                                 std::optional<std::int64_t> cardinality) {
  if (options.steps || options.max_steps || !options.hooks.empty()) return;
  internal::require_end("Estimator::train", cardinality, ".steps, .max_steps or a StopAtStepHook");
}

Estimator::Run::Run(Estimator& owner, Graph& trained, EstimatorTrainOptions options)
    : estimator(owner),
      graph(trained),
      manager(graph.checkpoint(), owner.config_.model_dir,
              {.max_to_keep = owner.config_.keep_checkpoint_max}),
      hooks(with_own_hooks(std::move(options.hooks), owner.config_)) {
  const auto restored = manager.restore_latest();
  if (!restored && !owner.warm_start_from_.empty()) {
    owner.restore_weights(graph, owner.warm_start_from_, "train");
  }
  const std::int64_t first = restored ? restored->step : 0;
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  last =
      std::min(options.max_steps.value_or(kNever), options.steps ? first + *options.steps : kNever);
  if (restored) saved = first;
  context.global_step = first;
  context.is_chief = graph.strategy.is_chief();
  context.model_dir = owner.config_.model_dir;
  context.save = [this] {
    const std::int64_t step = num_done();
    if (std::exchange(saved, step) != step) manager.save(step);
  };
  for (const auto& hook : hooks) hook->begin(context);
}

void Estimator::Run::step(double loss) {
  context.loss = loss;
  ++context.global_step;
  for (const auto& hook : hooks) hook->after_run(context);
}

void Estimator::Run::end() {
  for (const auto& hook : hooks) hook->end(context);
  estimator.variables_ = graph.variables;
  estimator.global_step_ = context.global_step;
}

Estimator& Estimator::train(const InputFn& input_fn, EstimatorTrainOptions options) {
  Run::check(options);
  Strategy& strategy = *config_.train_distribute;
  DistributedDataset data = strategy.distribute_datasets_from_function(input_fn);
  Run::require_end(options, data.cardinality());
  auto batch = first_batch(data);
  Graph graph = make_graph(strategy, (*batch)[0], EstimatorMode::kTrain);
  Run run(*this, graph, std::move(options));
  const auto step = [&](const Batch& rows) { return graph.train(rows); };
  while (run.should_continue() && batch != data.end()) {
    run.step(strategy.reduce(ReduceOp::kSum, strategy.run(step, *batch)).item_double());
    ++batch;
  }
  run.end();
  return *this;
}

void Estimator::run_eval(const InputFn& input_fn, const EstimatorEvalOptions& options,
                         EstimatorMode mode, const Step& step) {
  require_positive("steps", options.steps);
  Strategy& strategy = *config_.eval_distribute;
  DistributedDataset data = strategy.distribute_datasets_from_function(input_fn);
  if (!options.steps) internal::require_end("Estimator", data.cardinality(), ".steps");
  auto batch = first_batch(data);
  Graph graph = make_graph(strategy, (*batch)[0], mode);
  restore_weights(graph,
                  options.checkpoint_path.empty() ? config_.model_dir : options.checkpoint_path,
                  mode == EstimatorMode::kEval ? "evaluate" : "predict");
  const internal::AggregatedComponents averages(graph.variables);
  for (std::int64_t n = 0; batch != data.end() && n < options.steps.value_or(n + 1); ++n, ++batch) {
    step(graph, *batch);
  }
  variables_ = graph.variables;
}

Logs Estimator::evaluate(const InputFn& input_fn, EstimatorEvalOptions options) {
  std::vector<Mean> metrics;
  run_eval(input_fn, options, EstimatorMode::kEval,
           [&](Graph& graph, const PerReplica<Batch>& batch) {
             metrics = graph.metrics;  // copies of metrics share their sums
             graph.strategy.run(
                 [&](const Batch& rows) {
                   const EstimatorSpec spec = graph(rows);
                   if (rows.rows() == 0) return;  // an empty batch has no mean
                   graph.metrics.front().update_state(spec.loss);
                   for (std::size_t i = 0; i < spec.eval_metrics.size(); ++i) {
                     graph.metrics.at(i + 1).update_state(spec.eval_metrics[i].second);
                   }
                 },
                 batch);
           });
  Logs logs;
  for (const Mean& metric : metrics) logs.set(metric.name(), metric.result().item_double());
  if (config_.eval_distribute->is_chief() && config_.save_summary_steps > 0) {
    EventFileWriter events(config_.model_dir + "/eval");
    for (const auto& [name, value] : logs) events.scalar(name, global_step_, value);
  }
  logs.set("global_step", static_cast<double>(global_step_));
  return logs;
}

Tensor Estimator::predict(const InputFn& input_fn, EstimatorEvalOptions options) {
  std::vector<Tensor> parts;
  run_eval(input_fn, options, EstimatorMode::kPredict,
           [&](Graph& graph, const PerReplica<Batch>& batch) {
             const auto ask = [&](const Batch& rows) { return graph(rows).predictions; };
             parts.push_back(graph.strategy.gather(graph.strategy.run(ask, batch), 0).to(Device{}));
           });
  return concat(parts, 0);
}

Logs train_and_evaluate(Estimator& estimator, const TrainSpec& train, const EvalSpec& eval) {
  const auto evaluation = std::make_shared<EvaluationHook>(estimator, eval);
  auto hooks = train.hooks;
  hooks.push_back(evaluation);
  estimator.train(train.input_fn, {.max_steps = train.max_steps, .hooks = std::move(hooks)});
  if (evaluation->result.empty()) return estimator.evaluate(eval.input_fn, {.steps = eval.steps});
  return evaluation->result;
}

}  // namespace tutti
