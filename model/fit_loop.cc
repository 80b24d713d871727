// Epochs and steps of Model::fit and Model::evaluate, and the state of a running fit.
// SPDX-License-Identifier: Apache-2.0
#include "model/fit_loop.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <utility>

#include "core/names.h"
#include "model/stop_signals.h"
#include "strategy/input/input_parts.h"
#include "strategy/multi_worker/worker_team.h"
#include "strategy/variables/sync_on_read_variable.h"
#include "tutti/core/logging.h"
#include "tutti/model/model_checkpoint.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

// State of a running fit besides the model.

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

/// Calls `visit` with each variable of each metric and the prefix of its tensors' names. The prefix
/// is an index, because metrics of different outputs may have the same name.
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
    internal::require(states.size() == callbacks.size(), "Model::fit: expected the state of ",
                      callbacks.size(), " callbacks, got that of ", states.size(),
                      "; use the callbacks of the run that saved it, in the same order");
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

// Epochs and steps.

namespace {

/// Returns true if values should be fetched for the progress line now. On GPUs, fetching waits for
/// the step, so values are fetched only when they are shown. With several workers, fetching is
/// collective, so the decision depends on the step number and not on the clock.
bool shows(const Strategy& strategy, Verbosity verbose, const std::optional<Progress>& progress,
           std::int64_t number) {
  constexpr std::int64_t kStepsOfWorkers = 25;
  if (strategy.num_workers() == 1) return progress && progress->due();
  return verbose == Verbosity::kProgress && number % kStepsOfWorkers == 0;
}

}  // namespace

BatchFeed::BatchFeed(DistributedDataset data, FeedSteps steps)
    : data_(std::move(data)), steps_(steps) {
  if (!steps_.number) {
    require_end(steps_.who, data_.cardinality(),
                concat(".", steps_.option, ", or take() of the dataset"));
  } else if (*steps_.number <= 0) {
    fail(ErrorCode::kInvalidArgument, steps_.who, ": expected a positive number of ", steps_.option,
         ", got ", *steps_.number);
  }
}

void BatchFeed::begin_epoch() {
  step_ = 0;
  has_ended_ = false;
  if (!continues_passes()) iterator_.reset();
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
  has_ended_ = position.at("has_ended").as_bool() && !continues_passes();
}

void BatchFeed::start_pass() {
  iterator_ = data_.begin();
  advance_ = false;
  if (*iterator_ == data_.end() && !std::exchange(is_restored_, false)) {
    fail(ErrorCode::kInvalidArgument, steps_.who,
         ": expected a dataset with at least one batch, got none; check whether a file is "
         "empty or drop_remainder is set");
  }
  is_restored_ = false;
}

void BatchFeed::warn_of_end() {
  if (std::exchange(warned_, true)) return;
  log_warning(concat(
      steps_.who, ": your input ran out of data after ", step_, " of ", *steps_.number, " ",
      steps_.option,
      steps_.across_passes
          ? "; a new pass over the data begins; provide steps_per_epoch * epochs batches with "
            "repeat(), or set steps_per_epoch or batch_size so that each pass ends with an epoch; "
            "logged once"
          : concat("; the result is based on ", step_, " batches; try fewer ", steps_.option)));
}

void BatchFeed::warn_of_length() const {
  log_warning_once(concat(steps_.who, ": expected a finite pass over the data, got ", step_,
                          " batches so far from a dataset of unknown length; if the dataset is "
                          "infinite, use .",
                          steps_.option, " or dataset.take(); logged once"));
}

void BatchFeed::leave_pass() {
  if (!std::exchange(iterator_, std::nullopt)) return;
  Json next = data_.position();
  next.set("epoch", next.at("epoch").as_int() + 1).set("batches", 0);
  data_.restore(next);
}

const PerReplica<Batch>* BatchFeed::next() {
  constexpr std::int64_t kManyBatches = 100'000;
  if (has_ended_) return nullptr;
  if (steps_.number && step_ == *steps_.number) {
    if (!steps_.across_passes) leave_pass();
    return nullptr;
  }
  if (iterator_ && advance_) ++*iterator_;
  if (!iterator_) start_pass();
  if (*iterator_ == data_.end()) {
    if (steps_.number && step_ > 0) warn_of_end();
    if (!continues_passes()) return nullptr;
    start_pass();
  }
  advance_ = true;
  ++step_;
  if (step_ == kManyBatches && !num_steps()) warn_of_length();
  return &**iterator_;
}

std::optional<std::int64_t> BatchFeed::num_steps() const {
  std::optional<std::int64_t> batches = data_.cardinality();
  if (batches == kInfinite) batches.reset();
  if (!steps_.number) return batches;
  return steps_.across_passes || !batches ? steps_.number : std::min(*steps_.number, *batches);
}

namespace {

void warn_of_epochs(const FitOptions& options) {
  if (options.initial_epoch < options.epochs) return;
  log_warning(
      concat("Model::fit: expected initial_epoch below epochs, got ", options.initial_epoch,
             " and ", options.epochs,
             "; no epochs will run; epochs is the index of the last epoch plus one, not the "
             "number of epochs to train; use .epochs = ",
             options.initial_epoch + std::max<std::int64_t>(options.epochs, 1)));
}

}  // namespace

FitLoop::FitLoop(Model& model, CompiledModel& compiled, DistributedDataset data,
                 const FitOptions& options, std::optional<DistributedDataset> validation)
    : model_(model),
      state_(model.model_state_),
      compiled_(compiled),
      feed_(std::move(data),
            {"Model::fit", "steps_per_epoch", options.steps_per_epoch, /*across_passes=*/true}),
      options_(options),
      step_(model, compiled, class_weights_of(model, options)) {
  warn_of_classes(model, class_weights_of(model, options));
  if (validation) {
    validation_.emplace(
        std::move(*validation),
        FeedSteps{"Model::fit, validation_data", "validation_steps", options.validation_steps});
  } else if (options.validation_steps) {
    fail(ErrorCode::kInvalidArgument,
         "Model::fit: expected no validation_steps without validation_data, got ",
         *options.validation_steps, "; use .validation_data = {x, y}");
  }
  internal::require(options.validation_freq > 0,
                    "Model::fit: expected a positive validation_freq, got ",
                    options.validation_freq);
  for (const AnyCallback& callback : options.callbacks) {
    const auto* const backup = dynamic_cast<const BackupAndRestore*>(callback.operator->());
    internal::require(!options.stop_on_signals || !backup || !backup->has_stop_request(),
                      "Model::fit: stop_on_signals: expected a BackupAndRestore without "
                      "stop_requested, got one with it; use only one of these options");
  }
  warn_of_epochs(options);
  if (options.verbose != Verbosity::kSilent && model.strategy().is_chief())
    progress_.emplace(stdout, Clock::system(), options.verbose);
}

namespace {

/// Innermost fit() that is running on this thread, or null.
thread_local FitLoop* innermost_fit = nullptr;

}  // namespace

void FitLoop::keep_metrics_of_caller(const Strategy& strategy, const std::function<void()>& body) {
  const FitLoop* const caller = innermost_fit;
  // Under a different strategy, `body` does not change the metrics of the calling fit(), so they
  // need not be kept.
  if (!caller || &caller->model_.strategy() != &strategy) return body();
  const TensorProvider metrics = tensors_of_metrics(caller->compiled_);
  std::map<std::string, Tensor> sums;
  for (NamedTensor& tensor : metrics.save()) sums[tensor.name] = std::move(tensor.value);
  const auto restore = [&] {
    metrics.restore([&](const std::string& name) {
      const auto found = sums.find(name);
      return found == sums.end() ? Tensor() : found->second;
    });
  };
  try {
    body();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

History FitLoop::run() {
  FitLoop* const outer_fit = std::exchange(innermost_fit, this);
  const Model::State::Call outer_call =
      std::exchange(state_->call, {.method = "Model::fit", .fit = this});
  const std::shared_ptr<void> running(nullptr, [&](void*) {
    innermost_fit = outer_fit;
    state_->call = outer_call;
  });
  at_.point.epoch = options_.initial_epoch;
  state_->is_stopped_by_signal = false;
  std::optional<StopSignals> signals;
  if (options_.stop_on_signals) signals.emplace();
  for (const AnyCallback& callback : options_.callbacks) callback->set_model(model_);
  for (const AnyCallback& callback : options_.callbacks) callback->on_train_begin();
  train();
  compiled_.optimizer->finalize_variable_values();
  for (const AnyCallback& callback : options_.callbacks) callback->on_train_end(at_.logs);
  if (state_->is_stopped_by_signal) {
    report_stop();
  } else if (const int late = signals ? StopSignals::requested() : 0) {
    // Training has finished, so the earlier signal handlers must receive the signal.
    signals.reset();
    std::raise(late);
  }
  return at_.history;
}

/// Trains until the end. If failed workers are restarted, the other workers wait for them. All
/// workers then continue from the last committed batch.
void FitLoop::train() {
  const auto restore = [this] {
    for (const AnyCallback& callback : options_.callbacks) callback->on_can_restore();
    if (progress_ && at_.point.steps > 0)
      std::printf("resumed    after %s\n", point_text().c_str());
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
  checkpoint.add_state("fit_progress", {[this] {
                                          Json json = at_.to_json();
                                          json.set("stop_requested", state_->call.stop_requested);
                                          json.set("stop_checks", state_->stop_checks);
                                          return json.set("input", feed_.position());
                                        },
                                        [this](const Json& json) {
                                          state_->call.is_interrupted = false;
                                          at_ = FitProgress::from_json(json);
                                          state_->call.stop_requested =
                                              json.at("stop_requested").as_bool();
                                          if (const Json* checks = json.find("stop_checks"))
                                            state_->stop_checks = checks->as_int();
                                          feed_.restore(json.at("input"), at_.point.batches);
                                        }});
  if (validation_) {
    checkpoint.add_state("validation_input",
                         {[this] { return validation_->data().position(); },
                          [this](const Json& json) { validation_->data().restore(json); }});
  }
  checkpoint.add_state("callbacks", state_of_callbacks(options_.callbacks));
  checkpoint.add_tensors("callbacks", tensors_of_callbacks(options_.callbacks));
  checkpoint.add_tensors("metrics", tensors_of_metrics(compiled_));
  return checkpoint;
}

void FitLoop::run_epochs() {
  while (!at_.is_ended && at_.point.epoch < options_.epochs) {
    run_epoch();
    if (state_->call.is_interrupted) return;
    finish_epoch();
    for (const AnyCallback& callback : options_.callbacks)
      callback->on_epoch_end(at_.point.epoch, at_.logs);
    require_same_stop();
    at_.is_ended = state_->call.stop_requested;
    ++at_.point.epoch;
    at_.point.batches = 0;
    notify_state_complete();
    if (state_->call.is_interrupted) return;
  }
}

void FitLoop::notify_state_complete() {
  FitPoint point = at_.point;
  point.is_stop = stops_because_of_signal();
  for (const AnyCallback& callback : options_.callbacks) callback->on_can_save(point);
  if (point.is_stop) {
    state_->is_stopped_by_signal = true;
    state_->call.is_interrupted = true;
  }
  // Commit only within an epoch: the state at the end of an epoch is that of its last batch, which
  // is already committed.
  if (recovery_ && at_.point.batches > 0) recovery_->commit(at_.point.steps, SourceLocation());
}

/// Returns true if fit() must stop here. All workers stop at the same point, even if only one of
/// them receives a signal.
bool FitLoop::stops_because_of_signal() {
  const bool is_end = at_.is_ended || at_.point.epoch >= options_.epochs;
  if (!options_.stop_on_signals || is_end) return false;
  Strategy& strategy = model_.strategy();
  ++state_->stop_checks;
  if (StopSignals::requested()) {
    if (!team_of(strategy)) return true;
    strategy.request_stop("Model::fit: a signal");
  }
  return strategy.stops_after(state_->stop_checks);
}

/// Returns "batch 2/4 of epoch 2/3", or "epoch 1/3" between epochs.
std::string FitLoop::point_text() const {
  const auto& [epoch, batches, steps, is_stop] = at_.point;
  if (batches == 0) return concat("epoch ", epoch, '/', options_.epochs);
  const std::optional<std::int64_t> all = feed_.num_steps();
  return concat("batch ", batches, all ? concat('/', *all) : "", " of epoch ", epoch + 1, '/',
                options_.epochs);
}

/// Prints where training stopped. Called on all workers, because fetching the values is collective.
void FitLoop::report_stop() {
  const bool within_epoch = at_.point.batches > 0;
  const Logs logs = within_epoch ? fetched_logs() : Logs();
  if (!progress_) return;
  if (within_epoch) progress_->end_epoch(logs.entries(), {});
  std::string text = concat("stopped    by ", StopSignals::last_name(), " after ", point_text());
  const BackupAndRestore* backup = nullptr;
  for (const AnyCallback& callback : options_.callbacks)
    if (const auto* each = dynamic_cast<const BackupAndRestore*>(callback.operator->()))
      backup = each;
  if (!backup) {
    text += "; nothing was saved; use .callbacks = {BackupAndRestore(folder)}";
  } else if (backup->last_error()) {
    text += concat("; the state could not be saved in ", backup->backup_dir());
  } else {
    text += concat(", saved in ", backup->backup_dir(), "; to continue, start the program again");
  }
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void FitLoop::run_epoch() {
  const std::int64_t epoch = at_.point.epoch;
  if (at_.point.batches == 0) {  // otherwise fit resumes in the middle of the epoch
    compiled_.reset_metrics();
    for (const AnyCallback& callback : options_.callbacks) callback->on_epoch_begin(epoch);
    warn_of_changes_since_compile(model_, compiled_);
    feed_.begin_epoch();
  }
  if (progress_) progress_->begin_epoch(epoch, options_.epochs, feed_.num_steps());
  (void)model_.strategy().take_run_times();  // discards the times measured before this epoch
  const bool has_ended = at_.point.batches > 0 && state_->call.stop_requested;
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
    notify_batch_end(rows);
    notify_state_complete();
    if (state_->call.stop_requested || state_->call.is_interrupted) break;
  }
  if (!state_->call.is_interrupted) require_same_stop();
}

/// Throws if only some workers stop, because the remaining workers would wait indefinitely.
void FitLoop::require_same_stop() const {
  WorkerTeam* const team = team_of(model_.strategy());
  if (!team) return;
  std::vector<std::size_t> stopping, continuing;
  const std::vector<std::string> requests = team->gather_texts(
      state_->call.stop_requested ? "stop" : "", "stop_training() of Model::fit");
  for (std::size_t worker = 0; worker < requests.size(); ++worker)
    (requests[worker].empty() ? continuing : stopping).push_back(worker);
  if (stopping.empty() || continuing.empty()) return;
  fail(ErrorCode::kFailedPrecondition,
       "Model::fit: stop_training(): expected calls on all workers in the same step, "
       "got one in epoch ",
       at_.point.epoch, " on worker ", join(stopping), ", not on worker ", join(continuing),
       "; try a condition on values that are equal on all workers, such as logs");
}

void FitLoop::notify_batch_end(std::int64_t rows) {
  const std::int64_t number = at_.point.batches;
  const bool shown = shows(model_.strategy(), options_.verbose, progress_, number);
  Logs logs;
  if (shown || !options_.callbacks.empty()) logs = fetched_logs();
  if (progress_) progress_->step(number, rows, logs.entries());
  for (const AnyCallback& callback : options_.callbacks)
    callback->on_train_batch_end(number - 1, logs);
}

/// Returns the values of the metrics. Also detects non-finite losses on GPUs, which run() does not
/// check, because that would block.
Logs FitLoop::fetched_logs() {
  Logs logs = compiled_.logs();
  const Strategy& strategy = model_.strategy();
  const bool is_seen_by_run = strategy.replica_devices().front().type == DeviceType::kCpu;
  if (is_seen_by_run || warned_of_loss_ || std::isfinite(logs.at("loss"))) return logs;
  const std::vector<int> replicas =
      not_finite(compiled_.loss_tracker.totals_of_replicas(), strategy.first_replica());
  if (replicas.empty()) return logs;  // workers with such replicas log the warning
  warned_of_loss_ = true;
  log_warning(concat("replica ", join(replicas), ", step ", at_.point.steps,
                     " or earlier: the loss of Model::fit is not finite; try clipnorm, "
                     "TerminateOnNaN or a smaller learning rate; logged once"));
  return logs;
}

void FitLoop::require_same_model() const {
  if (model_.model_state_ == state_) return;
  fail(
      ErrorCode::kFailedPrecondition,
      "Model::fit: a callback assigned another model to the model being trained; expected the same "
      "model until fit() returns; call stop_training() in the callback, and assign the model after "
      "fit()");
}

void FitLoop::run_step(const PerReplica<Batch>& batch) {
  require_same_model();
  // The function returns the loss, so that run() reports values that are not finite.
  (void)model_.strategy().run([this](const Batch& part) { return step_.train(part); }, batch);
  if (compiled_.has_constraints) model_.apply_constraints();
}

void FitLoop::finish_epoch() {
  require_same_model();
  const std::int64_t epoch = at_.point.epoch;
  Logs logs = fetched_logs();
  TimeSplit split;
  split.input_wait = feed_.data().take_wait_seconds();
  const Strategy::RunTimes times = model_.strategy().take_run_times();
  split.communication = times.communication;
  split.compute = std::max(0.0, times.run - times.communication);
  ++state_->epochs_trained;
  if (validation_ && (epoch + 1) % options_.validation_freq == 0) {
    const Logs validated =
        run_evaluation(model_, compiled_, *validation_, {.callbacks = options_.callbacks});
    for (const auto& [name, value] : validated) logs.set("val_" + name, value);
  }
  if (compiled_.optimizer->has_schedule()) {
    logs.set("learning_rate", compiled_.optimizer->learning_rate());
  }
  for (const AnyCallback& callback : options_.callbacks) callback->add_to_logs(epoch, logs);
  const bool several = model_.strategy().num_replicas_in_sync() > 1;
  if (progress_) progress_->end_epoch(logs.entries(), several ? split : TimeSplit{});
  at_.logs = std::move(logs);
  at_.history.append(epoch, at_.logs);
}

Logs run_evaluation(Model& model, CompiledModel& compiled, BatchFeed& feed,
                    const EvaluateOptions& options) {
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
