// The epochs and steps of Model::fit and Model::evaluate, and what a running fit goes on from.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/fit_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/core/logging.h"
#include "tutti/strategy/distributed_variable.h"

namespace tutti::internal {

// What a running fit goes on from, beyond the model.

Json FitProgress::to_json() const {
  Json json = Json::object();
  json.set("epoch", point.epoch).set("batches", point.batches).set("steps", point.steps);
  json.set("is_ended", is_ended);
  json.set("history", history.to_json()).set("logs", logs.to_json());
  return json;
}

FitProgress FitProgress::from_json(const Json& json) {
  FitProgress progress;
  progress.point = {json.at("epoch").as_int(), json.at("batches").as_int(),
                    json.at("steps").as_int()};
  progress.is_ended = json.at("is_ended").as_bool();
  progress.history = History::from_json(json.at("history"));
  progress.logs = Logs::from_json(json.at("logs"));
  return progress;
}

namespace {

/// Calls `visit` with each variable of a metric and the prefix of its tensors: metrics of different
/// outputs may have equal names, so it is their place that counts.
template <class Visitor>
void for_each_sum(CompiledModel& compiled, const Visitor& visit) {
  const auto metrics = compiled.all_metrics();
  for (std::size_t m = 0; m < metrics.size(); ++m) {
    const std::vector<Variable>& variables = metrics[m].second->variables();
    for (std::size_t v = 0; v < variables.size(); ++v) {
      visit(variables[v], concat(m, '/', v, '/'));
    }
  }
}

}  // namespace

TensorProvider tensors_of_metrics(CompiledModel& compiled) {
  TensorProvider provider;
  provider.save = [&compiled] {
    std::vector<NamedTensor> all;
    for_each_sum(compiled, [&](const Variable& variable, const std::string& prefix) {
      for (NamedTensor& tensor : variable.storage().save()) {
        all.push_back({prefix + tensor.name, std::move(tensor.value)});
      }
    });
    return all;
  };
  provider.restore = [&compiled](const TensorLookup& lookup) {
    for_each_sum(compiled, [&](const Variable& variable, const std::string& prefix) {
      variable.storage().restore([&](const std::string& name) { return lookup(prefix + name); });
    });
  };
  return provider;
}

StateProvider state_of_callbacks(const std::vector<AnyCallback>& callbacks) {
  StateProvider provider;
  provider.save = [&callbacks] {
    Json states = Json::array();
    for (const AnyCallback& callback : callbacks) states.push_back(callback->save_state());
    return states;
  };
  provider.restore = [&callbacks](const Json& json) {
    const Json::Array& states = json.as_array();
    if (states.size() != callbacks.size()) {
      fail(ErrorCode::kInvalidArgument, "Model::fit: expected the state of ", callbacks.size(),
           " callbacks, got that of ", states.size(),
           "; try the callbacks of the run that saved it, in their order");
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (!states[i].is_null()) callbacks[i]->restore_state(states[i]);
    }
  };
  return provider;
}

TensorProvider tensors_of_callbacks(const std::vector<AnyCallback>& callbacks) {
  TensorProvider provider;
  provider.save = [&callbacks] {
    std::vector<NamedTensor> all;
    for (std::size_t c = 0; c < callbacks.size(); ++c) {
      const std::vector<Tensor> tensors = callbacks[c]->save_tensors();
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        all.push_back({concat(c, '/', i), tensors[i]});
      }
    }
    return all;
  };
  provider.restore = [&callbacks](const TensorLookup& lookup) {
    for (std::size_t c = 0; c < callbacks.size(); ++c) {
      std::vector<Tensor> tensors;
      for (Tensor next; (next = lookup(concat(c, '/', tensors.size()))).defined();) {
        tensors.push_back(next);
      }
      callbacks[c]->restore_tensors(std::move(tensors));
    }
  };
  return provider;
}

// The epochs and steps.

namespace {

/// Whether the values so far are fetched for the progress line. They are fetched only where
/// somebody looks at them: on GPUs that waits for the step. With several workers they are a meeting
/// of all, so it is the number of the step that decides, not the clock.
bool shows(const Strategy& strategy, Verbosity verbose, const std::optional<Progress>& progress,
           std::int64_t number) {
  constexpr std::int64_t kStepsOfWorkers = 25;
  if (strategy.num_workers() == 1) return progress && progress->due(number);
  return verbose == Verbosity::kProgress && number % kStepsOfWorkers == 0;
}

}  // namespace

BatchFeed::BatchFeed(DistributedDataset data, std::optional<std::int64_t> steps_per_epoch)
    : data_(std::move(data)), steps_per_epoch_(steps_per_epoch) {
  if (steps_per_epoch && *steps_per_epoch <= 0) {
    fail(ErrorCode::kInvalidArgument,
         "Model::fit: expected a positive number of steps per epoch, got ", *steps_per_epoch);
  }
}

void BatchFeed::begin_epoch() {
  step_ = 0;
  has_ended_ = false;
  if (!steps_per_epoch_) iterator_.reset();
}

Json BatchFeed::position() const {
  Json position = data_.position();
  position.set("has_ended", has_ended_ || (iterator_ && *iterator_ == data_.end()));
  return position;
}

void BatchFeed::restore(const Json& position, std::int64_t batches) {
  data_.restore(position);
  iterator_.reset();
  step_ = batches;
  is_restored_ = position.at("batches").as_int() > 0;
  has_ended_ = position.at("has_ended").as_bool() && !steps_per_epoch_;
}

void BatchFeed::start_pass() {
  iterator_ = data_.begin();
  advance_ = false;
  if (*iterator_ == data_.end() && !std::exchange(is_restored_, false)) {
    fail(ErrorCode::kInvalidArgument,
         "Model: the dataset has no batch; expected at least one; is a file empty or "
         "drop_remainder set?");
  }
  is_restored_ = false;
}

void BatchFeed::warn_of_end() {
  if (std::exchange(warned_, true)) return;
  log_warning(
      concat("Model::fit: your input ran out of data after ", step_, " of ", *steps_per_epoch_,
             " steps of an epoch; expected steps_per_epoch * epochs batches, or passes that "
             "end where epochs do; a new pass begins; try repeat(), or another "
             "steps_per_epoch or batch_size; said once"));
}

const PerReplica<Batch>* BatchFeed::next() {
  if (has_ended_ || (steps_per_epoch_ && step_ == *steps_per_epoch_)) return nullptr;
  if (iterator_ && advance_) ++*iterator_;
  if (!iterator_) start_pass();
  if (*iterator_ == data_.end()) {
    if (!steps_per_epoch_) return nullptr;
    if (step_ > 0) warn_of_end();
    start_pass();
  }
  advance_ = true;
  ++step_;
  return &**iterator_;
}

std::optional<std::int64_t> BatchFeed::num_steps() const {
  if (steps_per_epoch_) return steps_per_epoch_;
  const std::optional<std::int64_t> batches = data_.cardinality();
  return batches && *batches != kInfinite ? batches : std::nullopt;
}

FitLoop::FitLoop(Model& model, CompiledModel& compiled, DistributedDataset data,
                 const FitOptions& options, std::optional<DistributedDataset> validation)
    : model_(model),
      compiled_(compiled),
      feed_(std::move(data), options.steps_per_epoch),
      options_(options),
      validation_(std::move(validation)),
      step_(model, compiled, options.class_weight.empty() ? nullptr : &options.class_weight) {
  if (!options.class_weight.empty() && model.output_shapes().size() > 1) {
    fail(ErrorCode::kInvalidArgument,
         "Model::fit: class_weight needs a model with one output; try weights in the dataset");
  }
  if (options.validation_freq <= 0) {
    fail(ErrorCode::kInvalidArgument, "Model::fit: expected a positive validation_freq, got ",
         options.validation_freq);
  }
  if (options.verbose != Verbosity::kSilent && model.strategy().is_chief())
    progress_.emplace(stdout, Clock::system(), options.verbose);
}

History FitLoop::run() {
  Model::State& model_state = *model_.model_state_;
  const std::shared_ptr<void> running(nullptr, [&](void*) { model_state.fit = nullptr; });
  model_state.fit = this;
  model_state.stop_requested = model_state.is_interrupted = false;
  at_.point.epoch = options_.initial_epoch;
  for (const AnyCallback& callback : options_.callbacks) callback->set_model(model_);
  for (const AnyCallback& callback : options_.callbacks) callback->on_train_begin();
  train();
  compiled_.optimizer->finalize_variable_values();
  for (const AnyCallback& callback : options_.callbacks) callback->on_train_end(at_.logs);
  return at_.history;
}

/// Where workers that die are started again, the others wait for them, go back to the last batch,
/// and go on.
void FitLoop::train() {
  const auto restore = [this] {
    for (const AnyCallback& callback : options_.callbacks) callback->on_can_restore();
  };
  if (model_.strategy().num_workers() == 1 || !starts_workers_again()) {
    restore();
    return run_epochs();
  }
  recovery_.emplace(model_.strategy(), checkpoint(), RecoveryOptions{.restore_from_disk = restore});
  if (!recovery_->is_replacement()) restore();
  recovery_->run([this] { run_epochs(); });
}

Checkpoint FitLoop::checkpoint() {
  Checkpoint checkpoint = model_.checkpoint();
  checkpoint.add_state("fit_progress",
                       {[this] {
                          Json json = at_.to_json();
                          json.set("stop_requested", model_.model_state_->stop_requested);
                          return json.set("input", feed_.position());
                        },
                        [this](const Json& json) {
                          model_.model_state_->is_interrupted = false;
                          at_ = FitProgress::from_json(json);
                          model_.model_state_->stop_requested = json.at("stop_requested").as_bool();
                          feed_.restore(json.at("input"), at_.point.batches);
                        }});
  if (validation_) {
    checkpoint.add_state("validation_input",
                         {[this] { return validation_->position(); },
                          [this](const Json& json) { validation_->restore(json); }});
  }
  checkpoint.add_state("callbacks", state_of_callbacks(options_.callbacks));
  checkpoint.add_tensors("callbacks", tensors_of_callbacks(options_.callbacks));
  checkpoint.add_tensors("metrics", tensors_of_metrics(compiled_));
  return checkpoint;
}

void FitLoop::run_epochs() {
  while (!at_.is_ended && at_.point.epoch < options_.epochs) {
    run_epoch();
    if (model_.model_state_->is_interrupted) return;
    finish_epoch();
    for (const AnyCallback& callback : options_.callbacks)
      callback->on_epoch_end(at_.point.epoch, at_.logs);
    at_.is_ended = model_.model_state_->stop_requested;
    ++at_.point.epoch;
    at_.point.batches = 0;
    tell_state_is_whole();
  }
}

void FitLoop::tell_state_is_whole() {
  for (const AnyCallback& callback : options_.callbacks) callback->on_can_save(at_.point);
  // The end of an epoch is the state after its last batch once more.
  if (recovery_ && at_.point.batches > 0) recovery_->commit(at_.point.steps, SourceLocation());
}

void FitLoop::run_epoch() {
  const std::int64_t epoch = at_.point.epoch;
  if (at_.point.batches == 0) {  // otherwise it goes on in the middle of it
    compiled_.reset_metrics();
    for (const AnyCallback& callback : options_.callbacks) callback->on_epoch_begin(epoch);
    warn_of_changes_since_compile(model_, compiled_);
    feed_.begin_epoch();
  }
  if (progress_) progress_->begin_epoch(epoch, options_.epochs, feed_.num_steps());
  (void)model_.strategy().take_run_times();  // what was before is not this epoch's
  const bool has_ended = at_.point.batches > 0 && model_.model_state_->stop_requested;
  while (const PerReplica<Batch>* batch = has_ended ? nullptr : feed_.next()) {
    for (const AnyCallback& callback : options_.callbacks)
      callback->on_train_batch_begin(at_.point.batches);
    std::int64_t rows = 0;
    for (std::int64_t taken = 0; batch;) {
      run_step(*batch);
      rows += (*batch)[0].global_rows();
      ++at_.point.batches;
      ++at_.point.steps;
      batch = ++taken < compiled_.steps_per_execution ? feed_.next() : nullptr;
    }
    tell_batch_end(rows);
    tell_state_is_whole();
    if (model_.model_state_->stop_requested || model_.model_state_->is_interrupted) break;
  }
}

void FitLoop::tell_batch_end(std::int64_t rows) {
  const std::int64_t number = at_.point.batches;
  const bool shown = shows(model_.strategy(), options_.verbose, progress_, number);
  Logs logs;
  if (shown || !options_.callbacks.empty()) logs = fetched_logs();
  if (progress_) progress_->step(number, rows, logs.entries());
  for (const AnyCallback& callback : options_.callbacks)
    callback->on_train_batch_end(number - 1, logs);
}

/// What steps on GPUs returned run() does not look at, which would wait for each: it shows here.
Logs FitLoop::fetched_logs() {
  Logs logs = compiled_.logs();
  const Strategy& strategy = model_.strategy();
  const bool is_seen_by_run = strategy.replica_devices().front().type == DeviceType::kCpu;
  if (is_seen_by_run || warned_of_loss_ || std::isfinite(logs.at("loss"))) return logs;
  std::vector<int> replicas = model_.replicas_without_finite_loss();
  if (replicas.empty()) return logs;  // another worker says it
  for (int& replica : replicas) replica += strategy.first_replica();
  warned_of_loss_ = true;
  log_warning(concat("replica ", join(replicas), ", step ", at_.point.steps,
                     " or before: the loss of Model::fit is not finite; try a smaller learning "
                     "rate, clipnorm, or TerminateOnNaN; said once"));
  return logs;
}

void FitLoop::run_step(const PerReplica<Batch>& batch) {
  // Returned, so that run() names what is not finite.
  (void)model_.strategy().run([this](const Batch& part) { return step_.train(part); }, batch);
  if (compiled_.has_constraints) model_.apply_constraints();
}

void FitLoop::finish_epoch() {
  const std::int64_t epoch = at_.point.epoch;
  Logs logs = fetched_logs();
  TimeSplit split;
  split.input_wait = feed_.data().take_wait_seconds();
  const Strategy::RunTimes times = model_.strategy().take_run_times();
  split.communication = times.communication;
  split.compute = std::max(0.0, times.run - times.communication);
  ++model_.model_state_->epochs_trained;
  if (validation_ && (epoch + 1) % options_.validation_freq == 0) {
    const Logs validated =
        model_.evaluate(*validation_, {.callbacks = options_.callbacks}, SourceLocation());
    for (const auto& [name, value] : validated) logs.set("val_" + name, value);
  }
  for (const AnyCallback& callback : options_.callbacks) callback->add_to_logs(epoch, logs);
  const bool several = model_.strategy().num_replicas_in_sync() > 1;
  if (progress_) progress_->end_epoch(logs.entries(), several ? split : TimeSplit{});
  at_.logs = std::move(logs);
  at_.history.append(epoch, at_.logs);
}

Logs run_evaluation(Model& model, CompiledModel& compiled, DistributedDataset data,
                    const EvaluateOptions& options) {
  BatchFeed feed(std::move(data), std::nullopt);
  ReplicaStep step(model, compiled);
  std::optional<Progress> progress;
  if (options.verbose != Verbosity::kSilent && model.strategy().is_chief())
    progress.emplace(stdout, Clock::system(), options.verbose);
  const AggregatedComponents averages(model.variables());
  compiled.reset_metrics();
  for (const AnyCallback& callback : options.callbacks) callback->set_model(model);
  for (const AnyCallback& callback : options.callbacks) callback->on_test_begin();
  if (progress) progress->begin_epoch(0, 1, feed.num_steps());
  feed.begin_epoch();
  for (std::int64_t number = 0; const PerReplica<Batch>* batch = feed.next(); ++number) {
    for (const AnyCallback& callback : options.callbacks) callback->on_test_batch_begin(number);
    model.strategy().run([&step](const Batch& part) { step.test(part); }, *batch);
    const bool shown = shows(model.strategy(), options.verbose, progress, number + 1);
    if (!progress && !shown && options.callbacks.empty()) continue;
    const Logs logs = shown || !options.callbacks.empty() ? compiled.logs() : Logs();
    if (progress) progress->step(number + 1, (*batch)[0].global_rows(), logs.entries());
    for (const AnyCallback& callback : options.callbacks) callback->on_test_batch_end(number, logs);
  }
  const Logs logs = compiled.logs();
  if (progress) progress->end_epoch(logs.entries(), {});
  for (const AnyCallback& callback : options.callbacks) callback->on_test_end(logs);
  return logs;
}

}  // namespace tutti::internal
