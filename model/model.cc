// Model: compile, fit, evaluate, predict, weights and checkpoints.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/model.h"

#include <algorithm>

#include "core/call_site.h"
#include "core/names.h"
#include "model/fit_loop.h"
#include "strategy/variables/sync_on_read_variable.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"
#include "tutti/strategy/recovery.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// Formats the strategy: "mirrored (2 replicas)".
std::string name_and_size(const Strategy& strategy) {
  const int count = strategy.num_replicas_in_sync();
  return concat(strategy.name(), " (", count, count == 1 ? " replica)" : " replicas)");
}

Dataset dataset_of(const std::vector<Tensor>& x, const std::vector<Tensor>& y,
                   const Tensor& sample_weight) {
  std::vector<Tensor> components = x;
  components.insert(components.end(), y.begin(), y.end());
  if (sample_weight.defined()) components.push_back(sample_weight);
  return Dataset::from_tensor_slices(std::move(components));
}

constexpr std::int64_t kDefaultBatchSize = 32;

/// Returns the batch size that Keras would use for `rows` rows. Invalid numbers of steps are
/// rejected later.
std::int64_t batch_size_of(const FitOptions& options, std::int64_t rows) {
  if (options.batch_size) return *options.batch_size;
  const std::int64_t steps = options.steps_per_epoch.value_or(0);
  return steps > 0 ? std::max<std::int64_t>(1, (rows + steps - 1) / steps) : kDefaultBatchSize;
}

void require_no_batch_size(std::string_view who, std::optional<std::int64_t> batch_size) {
  if (!batch_size) return;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected no batch_size with a dataset, whose elements "
       "are batches already, got ",
       *batch_size, "; call dataset.batch(", *batch_size, ")");
}

/// Rejects options that apply only to tensors. As in Keras, `shuffle`, which is on by default, is
/// ignored for datasets.
template <class Options>
void require_options_of_dataset(std::string_view who, const Options& options) {
  require_no_batch_size(who, options.batch_size);
  if (!options.sample_weight.defined()) return;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected no sample_weight with a dataset, got one of "
       "shape ",
       options.sample_weight.shape(),
       "; pass the weights as the dataset's third component: "
       "Dataset::from_tensor_slices({x, y, weights})");
}

/// For a loss given by name, chooses logits or probabilities according to the output's activation,
/// as Keras does.
Loss fitted_loss(const Loss& loss, const std::string& activation) {
  if (!loss.prediction_kind_is_open()) return loss;
  const bool probabilities = activation == "softmax" || activation == "sigmoid";
  return loss.for_predictions(probabilities ? PredictionKind::kProbabilities
                                            : PredictionKind::kLogits);
}

/// Warns about a cross-entropy whose options contradict the activation of its output. Only known
/// activations are checked, because outputs of custom layers may be anything.
void warn_of_contradiction(const Loss& loss, const Model::Output& output) {
  const std::string& activation = output.activation;
  const bool probabilities = activation == "softmax" || activation == "sigmoid";
  const char* problem = nullptr;
  if (probabilities && loss.takes_logits()) {
    problem =
        " takes logits and applies its own activation, so training will be poor; use the "
        "layer without an activation, or .from_logits = false in the options of the loss";
  } else if (activation == "linear" && loss.takes_probabilities()) {
    problem =
        " takes probabilities, so training will be poor; use .from_logits = true in the options of "
        "the loss, or an activation softmax or sigmoid";
  }
  if (!problem) return;
  log_warning_once(concat("Model::compile: the output '", output.name, "' has the activation ",
                          activation, ", but its loss ", loss.name(), problem));
}

/// Returns a unique name for a metric in logs; resolves duplicates as Keras does.
std::string free_name(const std::string& prefix, const std::string& name, bool weighted,
                      const std::vector<internal::OutputMetric>& others) {
  const auto is_taken = [&](const std::string& shown) {
    return std::any_of(others.begin(), others.end(),
                       [&](const auto& other) { return other.shown_name == shown; });
  };
  std::string shown = prefix + name;
  if (weighted && is_taken(shown)) shown = prefix + "weighted_" + name;
  const std::string first = shown;
  for (int number = 1; is_taken(shown); ++number) shown = concat(first, '_', number);
  return shown;
}

void require_made_in_scope(const Strategy& strategy, const Metric& metric) {
  for (const Variable& variable : metric.variables()) {
    if (strategy.variable_created_in_scope(variable)) continue;
    fail(ErrorCode::kInvalidArgument, "Model::compile: metric '", metric.name(),
         "' was created outside the scope of the model's strategy ", name_and_size(strategy),
         "; use its name instead, or create it inside the scope");
  }
}

}  // namespace

Model::Model(std::string name, std::optional<Shape> input_shape)
    : Layer(std::move(name), input_shape), model_state_(std::make_shared<State>()) {
  model_state_->strategy = &get_strategy();
  set_built(input_shape.value_or(Shape{}), Shape{});
}

Shape Model::build(const Shape&) {
  // Never called, because model constructors mark the model as built.
  fail(ErrorCode::kInternal,
       "Model::build: expected no call, because a model creates its weights in its constructor");
}

Strategy& Model::strategy() const { return *model_state_->strategy; }

void Model::require_own_strategy(std::string_view who) const {
  if (in_cross_replica_context() || !has_strategy()) {
    const Strategy& here = get_strategy();
    if (!has_strategy() || &here == &strategy()) return;
    fail(ErrorCode::kFailedPrecondition, who, ": the model was created under the strategy ",
         name_and_size(strategy()), ", but this is the scope of ", name_and_size(here),
         "; expected both to be the same; create the model inside this scope");
  }
  if (&get_strategy() == &default_strategy()) return;
  fail(ErrorCode::kFailedPrecondition, who,
       ": called inside a replica; expected a call outside strategy.run()");
}

std::vector<Model::Output> Model::outputs() const { return {{name(), output_activation()}}; }

void Model::compile(CompileOptions options) {
  require_own_strategy("Model::compile");
  if (const char* const method = model_state_->call.method) {
    fail(ErrorCode::kFailedPrecondition, "Model::compile: called in a callback of ", method,
         "(), which uses the optimizer and metrics that compile() replaces; expected a call before "
         "or after it; call stop_training() in the callback, then compile() and fit() with "
         ".initial_epoch = epochs_trained()");
  }
  internal::require(options.steps_per_execution > 0,
                    "Model::compile: expected a positive steps_per_execution, got ",
                    options.steps_per_execution);
  const Scope scope = strategy().scope();
  auto compiled = std::make_unique<internal::CompiledModel>();
  compiled->options = options;
  compiled->steps_per_execution = options.steps_per_execution;
  compiled->has_constraints = has_constraints();
  compile_losses(options, *compiled);
  compile_metrics(options, *compiled);
  compiled->layer_metrics = metrics();
  for (const auto& [name, metric] : compiled->all_metrics())
    require_made_in_scope(strategy(), *metric);
  const std::vector<Variable> trainable = trainable_variables();
  if (!trainable.empty()) {
    compiled->optimizer = make_optimizer(options.optimizer, trainable);
    const bool small_range = dtype_policy().compute == DType::kFloat16;
    if (small_range && options.auto_scale_loss && !compiled->optimizer->has_loss_scale())
      compiled->optimizer->use_dynamic_loss_scale({});
  }
  model_state_->compiled = std::move(compiled);
}

void Model::compile_losses(const CompileOptions& options, internal::CompiledModel& compiled) const {
  std::vector<Loss> losses = options.losses;
  if (options.loss) losses.insert(losses.begin(), *options.loss);
  const std::vector<Output> results = outputs();
  if (losses.size() > 0 && losses.size() != results.size()) {
    fail(ErrorCode::kInvalidArgument, "Model::compile: expected one loss for each of the ",
         results.size(), " outputs, got ", losses.size(), "; use .losses = {...}");
  }
  if (!options.loss_weights.empty() && options.loss_weights.size() != losses.size()) {
    fail(ErrorCode::kInvalidArgument, "Model::compile: expected one loss weight for each of the ",
         losses.size(), " losses, got ", options.loss_weights.size());
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    internal::require(losses[i].reduction() != LossReduction::kNone, "Model::compile: loss '",
                      losses[i].name(),
                      "' has reduction NONE, which gives no single value to minimise; use AUTO");
    const Loss loss = fitted_loss(losses[i], results[i].activation);
    warn_of_contradiction(loss, results[i]);
    compiled.losses.push_back(
        {loss, options.loss_weights.empty() ? 1.0 : options.loss_weights[i],
         results.size() == 1 ? nullptr
                             : std::make_unique<internal::LossTracker>(results[i].name + "_loss")});
  }
}

void Model::compile_metrics(const CompileOptions& options,
                            internal::CompiledModel& compiled) const {
  const std::vector<Output> results = outputs();
  const bool several = results.size() > 1;
  if (several && !(options.metrics.empty() && options.weighted_metrics.empty())) {
    fail(
        ErrorCode::kInvalidArgument, "Model::compile: the model has ", results.size(),
        " outputs; expected .output_metrics (or .output_weighted_metrics) = {{...}, {...}} instead "
        "of metrics");
  }
  for (const auto* lists : {&options.output_metrics, &options.output_weighted_metrics}) {
    if (lists->empty() || lists->size() == results.size()) continue;
    fail(ErrorCode::kInvalidArgument,
         "Model::compile: expected one list of metrics for each of the ", results.size(),
         " outputs, got ", lists->size());
  }
  auto add = [&](const MetricSpec& spec, std::size_t output, bool weighted) {
    const Loss loss = compiled.losses.empty() ? Loss("mse") : compiled.losses[output].loss;
    auto metric = spec.make(loss);
    const std::string prefix = several ? results[output].name + "_" : "";
    std::string shown = free_name(prefix, metric->name(), weighted, compiled.metrics);
    compiled.metrics.push_back({std::move(metric), std::move(shown), output, weighted});
  };
  for (const MetricSpec& spec : options.metrics) add(spec, 0, false);
  for (std::size_t i = 0; i < options.output_metrics.size(); ++i)
    for (const MetricSpec& spec : options.output_metrics[i]) add(spec, i, false);
  for (const MetricSpec& spec : options.weighted_metrics) add(spec, 0, true);
  for (std::size_t i = 0; i < options.output_weighted_metrics.size(); ++i)
    for (const MetricSpec& spec : options.output_weighted_metrics[i]) add(spec, i, true);
}

bool Model::compiled() const { return model_state_->compiled != nullptr; }

internal::CompiledModel& Model::compiled_model(std::string_view who) const {
  if (!compiled()) {
    fail(ErrorCode::kFailedPrecondition, who,
         ": the model is not compiled; call model.compile({.optimizer = \"adam\", .loss = "
         "\"sparse_categorical_crossentropy\"}) first");
  }
  return *model_state_->compiled;
}

Optimizer& Model::optimizer() {
  internal::CompiledModel& compiled = compiled_model("Model::optimizer");
  if (!compiled.optimizer) {
    fail(ErrorCode::kFailedPrecondition,
         "Model::optimizer: the model has no trainable variables, so there is nothing to train");
  }
  return *compiled.optimizer;
}

const Loss& Model::loss() const {
  const internal::CompiledModel& compiled = compiled_model("Model::loss");
  if (compiled.losses.empty())
    fail(ErrorCode::kFailedPrecondition, "Model::loss: the model was compiled without a loss");
  return compiled.losses[0].loss;
}

std::vector<std::string> Model::metrics_names() const {
  std::vector<std::string> names;
  for (const auto& [name, metric] : compiled_model("Model::metrics_names").all_metrics())
    names.push_back(name);
  return names;
}

MetricDirection Model::metric_direction(std::string_view name) const {
  if (name.starts_with("val_")) name.remove_prefix(4);
  for (const auto& [shown, metric] : compiled_model("Model::metric_direction").all_metrics())
    if (shown == name) return metric->direction();
  return MetricDirection::kUnknown;
}

bool Model::has_validation() const {
  return model_state_->call.fit && model_state_->call.fit->has_validation();
}

std::vector<int> Model::replicas_without_finite_loss() const {
  const internal::LossTracker& tracker =
      compiled_model("Model::replicas_without_finite_loss").loss_tracker;
  std::vector<Tensor> local;
  for (const double total : tracker.totals_of_replicas())
    local.push_back(Tensor::from({1}, std::vector<double>{total}));
  const Tensor totals =
      strategy().gather(PerReplica<Tensor>(std::move(local)), 0, CallSite::current());
  // A worker that trains independently gathers only from its own replicas, which are numbered from
  // first_replica().
  const int first = strategy().num_workers() > 1 ? 0 : strategy().first_replica();
  return internal::not_finite(totals.to_doubles(), first);
}

void Model::stop_training() { model_state_->call.stop_requested = true; }
void Model::interrupt_training() { model_state_->call.is_interrupted = true; }
bool Model::stopped_by_signal() const { return model_state_->is_stopped_by_signal; }
std::int64_t Model::epochs_trained() const { return model_state_->epochs_trained; }

History Model::fit(const Tensor& x, const Tensor& y, FitOptions options,
                   const SourceLocation& where) {
  return fit(std::vector<Tensor>{x}, std::vector<Tensor>{y}, std::move(options), where);
}

History Model::fit(const std::vector<Tensor>& x, const std::vector<Tensor>& y, FitOptions options,
                   const SourceLocation& where) {
  internal::require_counts(*this, "Model::fit", x.size(), y.size());
  if (!y.empty())
    internal::warn_of_absent_classes(*this, internal::class_weights_of(*this, options), y);
  Dataset data = dataset_of(x, y, options.sample_weight);
  if (options.shuffle)
    data = data.shuffle(std::max<std::int64_t>(1, x.at(0).shape()[0]), random_seed());
  const std::int64_t batch_size = batch_size_of(options, data.cardinality().value_or(0));
  return fit_on(first_pass_of(data.batch(batch_size), options), options, where);
}

History Model::fit(const Dataset& data, FitOptions options, const SourceLocation& where) {
  require_options_of_dataset("Model::fit", options);
  return fit_on(first_pass_of(data, options), options, where);
}

History Model::fit(DistributedDataset data, FitOptions options, const SourceLocation& where) {
  require_options_of_dataset("Model::fit", options);
  return fit_on(std::move(data), options, where);
}

DistributedDataset Model::first_pass_of(const Dataset& data, const FitOptions& options) const {
  require_own_strategy("Model::fit");
  DistributedDataset batches = strategy().distribute_dataset(data);
  // Sets the index of the pass ("epoch"), because the order of a shuffle depends on it.
  Json position = Json::object();
  position.set("epoch", std::max(options.initial_epoch, epochs_trained()));
  position.set("batches", 0);
  batches.restore(position);
  return batches;
}

History Model::fit_on(DistributedDataset data, const FitOptions& options,
                      const SourceLocation& where) {
  const CallSite site(where);
  require_own_strategy("Model::fit");
  internal::CompiledModel& compiled = compiled_model("Model::fit");
  (void)optimizer();
  std::optional<DistributedDataset> validation;
  if (options.validation_data.dataset) {
    validation = strategy().distribute_dataset(*options.validation_data.dataset);
  } else if (const ValidationData& tensors = options.validation_data;
             !tensors.features.empty() && tensors.features[0].defined()) {
    internal::require_counts(*this, "Model::fit: validation_data", tensors.features.size(),
                             tensors.labels.size());
    validation =
        strategy().distribute_dataset(dataset_of(tensors.features, tensors.labels, {})
                                          .batch(options.batch_size.value_or(kDefaultBatchSize)));
  }
  History history;
  internal::FitLoop::keep_metrics_of_caller(strategy(), [&] {
    history =
        internal::FitLoop(*this, compiled, std::move(data), options, std::move(validation)).run();
  });
  return history;
}

Logs Model::evaluate(const Tensor& x, const Tensor& y, EvaluateOptions options,
                     const SourceLocation& where) {
  return evaluate(std::vector<Tensor>{x}, std::vector<Tensor>{y}, std::move(options), where);
}

Logs Model::evaluate(const std::vector<Tensor>& x, const std::vector<Tensor>& y,
                     EvaluateOptions options, const SourceLocation& where) {
  internal::require_counts(*this, "Model::evaluate", x.size(), y.size());
  require_own_strategy("Model::evaluate");
  const Dataset data =
      dataset_of(x, y, options.sample_weight).batch(options.batch_size.value_or(kDefaultBatchSize));
  return evaluate_on(strategy().distribute_dataset(data), options, where);
}

Logs Model::evaluate(const Dataset& data, EvaluateOptions options, const SourceLocation& where) {
  require_own_strategy("Model::evaluate");
  return evaluate(strategy().distribute_dataset(data), std::move(options), where);
}

Logs Model::evaluate(DistributedDataset data, EvaluateOptions options,
                     const SourceLocation& where) {
  require_options_of_dataset("Model::evaluate", options);
  return evaluate_on(std::move(data), options, where);
}

Logs Model::evaluate_on(DistributedDataset data, const EvaluateOptions& options,
                        const SourceLocation& where) {
  const CallSite site(where);
  require_own_strategy("Model::evaluate");
  internal::CompiledModel& compiled = compiled_model("Model::evaluate");
  internal::BatchFeed feed(std::move(data), {"Model::evaluate", "steps", options.steps});
  const std::shared_ptr<State> state = model_state_;
  const char* const outer = std::exchange(
      state->call.method, state->call.method ? state->call.method : "Model::evaluate");
  const std::shared_ptr<void> running(nullptr, [&](void*) { state->call.method = outer; });
  Logs logs;
  internal::FitLoop::keep_metrics_of_caller(
      strategy(), [&] { logs = internal::run_evaluation(*this, compiled, feed, options); });
  return logs;
}

namespace {

Tensor only_output(const std::vector<Tensor>& results) {
  if (results.size() == 1) return results[0];
  fail(ErrorCode::kInvalidArgument, "Model::predict: the model has ", results.size(),
       " outputs; call predict_all()");
}

}  // namespace

Tensor Model::predict(const Tensor& x, PredictOptions options, const SourceLocation& where) {
  return only_output(predict_all(std::vector<Tensor>{x}, options, where));
}

Tensor Model::predict(const Dataset& data, PredictOptions options, const SourceLocation& where) {
  require_own_strategy("Model::predict");
  return predict(strategy().distribute_dataset(data), options, where);
}

Tensor Model::predict(DistributedDataset data, PredictOptions options,
                      const SourceLocation& where) {
  return only_output(predict_all(std::move(data), options, where));
}

std::vector<Tensor> Model::predict_all(const std::vector<Tensor>& x, PredictOptions options,
                                       const SourceLocation& where) {
  internal::require_counts(*this, "Model::predict", x.size(), 0);
  require_own_strategy("Model::predict");
  const std::int64_t batch_size = options.batch_size.value_or(kDefaultBatchSize);
  return predict_on(strategy().distribute_dataset(Dataset::from_tensor_slices(x).batch(batch_size)),
                    options.steps, where);
}

std::vector<Tensor> Model::predict_all(DistributedDataset data, PredictOptions options,
                                       const SourceLocation& where) {
  require_no_batch_size("Model::predict", options.batch_size);
  return predict_on(std::move(data), options.steps, where);
}

std::vector<Tensor> Model::predict_on(DistributedDataset data, std::optional<std::int64_t> steps,
                                      const SourceLocation& where) {
  const CallSite site(where);
  require_own_strategy("Model::predict");
  const std::size_t num_inputs = input_shapes().size(), num_outputs = output_shapes().size();
  internal::BatchFeed feed(std::move(data), {"Model::predict", "steps", steps});
  const internal::AggregatedComponents averages(variables());
  std::vector<std::vector<Tensor>> outputs(num_outputs);
  const auto predict_batch = [&](const PerReplica<Batch>& batch) {
    internal::require_components(*this, "Model::predict", batch[0].element().size(), false);
    const PerReplica<std::vector<Tensor>> parts = strategy().run(
        [&](const Batch& part) {
          const std::vector<Tensor>& all = part.element().tensors();
          return apply(std::span(all).first(std::min(num_inputs, all.size())));
        },
        batch);
    for (std::size_t i = 0; i < num_outputs; ++i) {
      std::vector<Tensor> rows;
      for (std::size_t replica = 0; replica < parts.size(); ++replica)
        rows.push_back(parts[replica][i]);
      // Copies to the host, because the predictions of all batches may exceed a GPU's memory.
      outputs[i].push_back(
          strategy().gather(PerReplica<Tensor>(std::move(rows)), 0, where).to(Device{}));
    }
  };
  internal::FitLoop::keep_metrics_of_caller(strategy(), [&] {
    while (const PerReplica<Batch>* batch = feed.next()) predict_batch(*batch);
  });
  std::vector<Tensor> results;
  for (const std::vector<Tensor>& parts : outputs) results.push_back(concat(parts, 0));
  return results;
}

void Model::save_weights(const std::string& path, const SourceLocation& where) const {
  tutti::save_weights(path, variables(), {.writes = strategy().is_chief()}, where);
}

void Model::load_weights(const std::string& path, LoadWeightsOptions options) {
  options.ignore_unknown = true;
  tutti::load_weights(path, variables(), options);
}

Checkpoint Model::checkpoint() {
  Checkpoint checkpoint(variables(), checkpoint_options(strategy()));
  if (compiled() && model_state_->compiled->optimizer)
    checkpoint.add(optimizer().state_variables());
  checkpoint.add_state(
      "strategy",
      {[state = model_state_] { return state->strategy->save_state(); },
       [state = model_state_](const Json& json) { state->strategy->restore_state(json); }});
  checkpoint.set_about("strategy", strategy().name());
  checkpoint.set_about("replicas", strategy().num_replicas_in_sync());
  checkpoint.add_state("fit", {[state = model_state_] {
                                 Json json = Json::object();
                                 json.set("epochs_trained", state->epochs_trained);
                                 return json;
                               },
                               [state = model_state_](const Json& json) {
                                 state->epochs_trained = json.at("epochs_trained").as_int();
                               }});
  return checkpoint;
}

Checkpoint Model::fit_checkpoint() {
  if (model_state_->call.fit) return model_state_->call.fit->checkpoint();
  fail(ErrorCode::kFailedPrecondition,
       "Model::fit_checkpoint: fit() is not running; expected a call from a callback; elsewhere, "
       "call checkpoint()");
}

}  // namespace tutti
