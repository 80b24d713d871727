// The epochs and steps of Model::fit and Model::evaluate.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/fit_loop.h"

#include "tutti/model/model_state.h"

namespace tutti::internal {
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
  if (!steps_per_epoch_) iterator_.reset();
}

void BatchFeed::start_pass() {
  iterator_ = data_.begin();
  advance_ = false;
  if (*iterator_ == data_.end()) {
    fail(ErrorCode::kInvalidArgument,
         "Model: the dataset has no batch; expected at least one; is a file empty or "
         "drop_remainder set?");
  }
}

const PerReplica<Batch>* BatchFeed::next() {
  if (steps_per_epoch_ && step_ == *steps_per_epoch_) return nullptr;
  if (iterator_ && advance_) ++*iterator_;
  if (!iterator_) {
    start_pass();
  } else if (*iterator_ == data_.end()) {
    if (!steps_per_epoch_) return nullptr;
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
                 const FitOptions& options, std::function<Logs()> validate)
    : model_(model),
      compiled_(compiled),
      feed_(std::move(data), options.steps_per_epoch),
      options_(options),
      validate_(std::move(validate)),
      step_(model, compiled, options.class_weight.empty() ? nullptr : &options.class_weight) {
  if (!options.class_weight.empty() && model.output_shapes().size() > 1) {
    fail(ErrorCode::kInvalidArgument,
         "Model::fit: class_weight needs a model with one output; try weights in the dataset");
  }
  if (options.validation_freq <= 0) {
    fail(ErrorCode::kInvalidArgument, "Model::fit: expected a positive validation_freq, got ",
         options.validation_freq);
  }
  const bool is_chief = model.strategy().is_chief();
  if (options.verbose == Verbosity::kProgress && is_chief) progress_.emplace();
}

History FitLoop::run() {
  History history;
  model_.model_state_->stop_requested = false;
  for (const AnyCallback& callback : options_.callbacks) callback->set_model(model_);
  for (const AnyCallback& callback : options_.callbacks) callback->on_train_begin();
  Logs logs;
  for (std::int64_t epoch = options_.initial_epoch; epoch < options_.epochs; ++epoch) {
    run_epoch(epoch);
    logs = finish_epoch(epoch);
    history.append(epoch, logs);
    for (const AnyCallback& callback : options_.callbacks) callback->on_epoch_end(epoch, logs);
    if (model_.model_state_->stop_requested) break;
  }
  compiled_.optimizer->finalize_variable_values();
  for (const AnyCallback& callback : options_.callbacks) callback->on_train_end(logs);
  return history;
}

void FitLoop::run_epoch(std::int64_t epoch) {
  compiled_.reset_metrics();
  for (const AnyCallback& callback : options_.callbacks) callback->on_epoch_begin(epoch);
  if (progress_) progress_->begin_epoch(epoch, options_.epochs, feed_.num_steps());
  feed_.begin_epoch();
  (void)model_.strategy().take_run_times();  // what was before is not this epoch's
  std::int64_t number = 0;
  while (const PerReplica<Batch>* batch = feed_.next()) {
    for (const AnyCallback& callback : options_.callbacks) callback->on_train_batch_begin(number);
    std::int64_t rows = 0;
    for (std::int64_t taken = 0; batch;) {
      run_step(*batch);
      rows = (*batch)[0].global_rows();
      ++number;
      batch = ++taken < compiled_.steps_per_execution ? feed_.next() : nullptr;
    }
    tell_batch_end(number, rows);
    if (model_.model_state_->stop_requested) break;
  }
}

void FitLoop::tell_batch_end(std::int64_t number, std::int64_t rows) {
  const bool shown = shows(model_.strategy(), options_.verbose, progress_, number);
  Logs logs;
  if (shown || !options_.callbacks.empty()) logs = compiled_.logs();
  if (progress_) progress_->step(number, rows, logs.entries());
  for (const AnyCallback& callback : options_.callbacks)
    callback->on_train_batch_end(number - 1, logs);
}

void FitLoop::run_step(const PerReplica<Batch>& batch) {
  model_.strategy().run([this](const Batch& part) { step_.train(part); }, batch);
  if (compiled_.has_constraints) model_.apply_constraints();
}

Logs FitLoop::finish_epoch(std::int64_t epoch) {
  Logs logs = compiled_.logs();
  TimeSplit split;
  split.input_wait = feed_.data().take_wait_seconds();
  const Strategy::RunTimes times = model_.strategy().take_run_times();
  split.communication = times.communication;
  split.compute = std::max(0.0, times.run - times.communication);
  ++model_.model_state_->epochs_trained;
  if (validate_ && (epoch + 1) % options_.validation_freq == 0) {
    for (const auto& [name, value] : validate_()) logs.set("val_" + name, value);
  }
  for (const AnyCallback& callback : options_.callbacks) callback->add_to_logs(epoch, logs);
  const bool several = model_.strategy().num_replicas_in_sync() > 1;
  if (progress_) progress_->end_epoch(logs.entries(), several ? split : TimeSplit{});
  return logs;
}

Logs run_evaluation(Model& model, CompiledModel& compiled, DistributedDataset data,
                    const EvaluateOptions& options) {
  BatchFeed feed(std::move(data), std::nullopt);
  ReplicaStep step(model, compiled);
  std::optional<Progress> progress;
  const bool is_chief = model.strategy().is_chief();
  if (options.verbose == Verbosity::kProgress && is_chief) progress.emplace();
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
