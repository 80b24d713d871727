// TrainingSession for custom loops: epochs, progress, checkpoints and recovery.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/training/training_session.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "core/file.h"
#include "model/stop_signals.h"
#include "strategy/input/input_parts.h"

namespace tutti {

TrainingRecord::TrainingRecord(bool keeps_losses, Clock& clock)
    : keeps_losses_(keeps_losses), clock_(&clock), start_(clock.now()), last_step_(start_) {}

void TrainingRecord::step(float loss, std::int64_t rows) {
  last_step_ = clock_->now();
  if (first_step_) {
    timed_rows_ += rows;
  } else {
    first_step_ = last_step_;
  }
  ++steps_;
  if (keeps_losses_) losses_.push_back(loss);
}

double TrainingRecord::examples_per_second() const {
  if (!first_step_) return 0.0;
  const double seconds = seconds_between(*first_step_, last_step_);
  return seconds > 0 ? static_cast<double>(timed_rows_) / seconds : 0.0;
}

std::optional<double> TrainingRecord::seconds_to_first_step() const {
  if (!first_step_) return std::nullopt;
  return seconds_between(start_, *first_step_);
}

Json TrainingRecord::save() const {
  std::string bits;  // eight hex digits per loss, to keep every checkpoint small
  for (const float loss : losses_) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", std::bit_cast<std::uint32_t>(loss));
    bits += text;
  }
  Json state = Json::object();
  state.set("steps", steps_);
  state.set("loss_bits", std::move(bits));
  return state;
}

void TrainingRecord::restore(const Json& state) {
  steps_ = state.at("steps").as_int();
  losses_.clear();
  if (!keeps_losses_) return;
  const std::string& bits = state.at("loss_bits").as_string();
  for (std::size_t place = 0; place < bits.size(); place += 8) {
    const auto number = std::strtoul(bits.substr(place, 8).c_str(), nullptr, 16);
    losses_.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(number)));
  }
  losses_.resize(static_cast<std::size_t>(steps_), std::numeric_limits<float>::quiet_NaN());
}

namespace {

constexpr int kStoppedOnRequest = 75;

/// Returns true if `mine` is true on any replica of any worker. Collective.
bool on_any_replica(Strategy& strategy, bool mine) {
  const auto flags = strategy.distribute_values_from_function(
      [mine](const ValueContext&) { return Tensor::scalar(mine ? 1.0 : 0.0, DType::kFloat32); });
  return strategy.reduce(ReduceOp::kSum, flags).item() > 0.0F;
}

Checkpoint make_checkpoint(Strategy& strategy, const std::vector<Variable>& weights,
                           const Optimizer& optimizer, DistributedDataset batches,
                           TrainingRecord& record, std::int64_t& saved_step) {
  Checkpoint checkpoint(weights, checkpoint_options(strategy));
  checkpoint.add(optimizer.state_variables());
  checkpoint.set_about("strategy", strategy.name());
  checkpoint.set_about("replicas", strategy.num_replicas_in_sync());
  checkpoint.add_state("strategy",
                       {[&strategy] { return strategy.save_state(); },
                        [&strategy](const Json& state) { strategy.restore_state(state); }});
  checkpoint.add_state("input", {[batches] { return batches.position(); },
                                 [batches](const Json& state) mutable { batches.restore(state); }});
  checkpoint.add_state("record", {[&record] { return record.save(); },
                                  [&record, &saved_step](const Json& state) {
                                    record.restore(state);
                                    // Saving is collective, and a replacement worker does not know
                                    // which step the other workers saved last.
                                    saved_step = -1;
                                  }});
  return checkpoint;
}

}  // namespace

TrainingSession::TrainingSession(Strategy& strategy, std::vector<Variable> weights,
                                 const Optimizer& optimizer, DistributedDataset batches,
                                 TrainingSessionOptions options)
    : options_(std::move(options)),
      strategy_(strategy),
      weights_(std::move(weights)),
      optimizer_(optimizer),
      batches_(std::move(batches)),
      record_(options_.keep_losses),
      workers_(dynamic_cast<MultiWorkerMirroredStrategy*>(&strategy)) {
  if (!options_.log_dir.empty() && strategy_.is_chief()) events_.emplace(options_.log_dir);
  if (options_.show_progress && strategy_.is_chief()) progress_.emplace();
  if (options_.steps < 0) {
    fail(ErrorCode::kInvalidArgument,
         "TrainingSession: steps: expected a number >= 0 (0: no limit), ", "got ", options_.steps);
  }
  if (options_.steps == 0) {
    internal::require_end("TrainingSession", batches_.cardinality(),
                          ".steps, or take() of the dataset");
  }
  if (options_.checkpoint_dir.empty() && options_.resume) {
    fail(ErrorCode::kInvalidArgument,
         "TrainingSession: resume: expected a checkpoint_dir, got none");
  }
  const bool saves = !options_.checkpoint_dir.empty() || options_.save_on_signal;
  if (options_.grace_period != Duration::zero() &&
      (options_.grace_period < Duration::zero() || !saves)) {
    fail(ErrorCode::kInvalidArgument,
         "TrainingSession: expected a grace_period >= 0 and, if it is ",
         "positive, a checkpoint_dir or save_on_signal, got ",
         seconds_between({}, TimePoint(options_.grace_period)), " s",
         saves ? "" : " without either");
  }
  if (saves) stop_signals_ = std::make_shared<internal::StopSignals>();
  if (options_.checkpoint_dir.empty()) return;
  checkpoints_.emplace(
      make_checkpoint(strategy_, weights_, optimizer_, batches_, record_, saved_step_),
      options_.checkpoint_dir,
      CheckpointManagerOptions{.asynchronous = true, .on_error = OnSaveError::kContinue});
  // A process that replaces a lost worker receives its training state from the other workers.
  if (!options_.resume || (workers_ && workers_->is_replacement())) return;
  if (restore_latest()) return;
  fail(ErrorCode::kNotFound, "TrainingSession: expected a checkpoint to resume from in ",
       options_.checkpoint_dir, ", found none; train without resume first");
}

TrainingSession::~TrainingSession() = default;

bool TrainingSession::restore_latest() {
  const auto info = checkpoints_ ? checkpoints_->restore_latest() : std::nullopt;
  if (!info) return false;
  saved_step_ = info->step;
  if (progress_) {
    std::printf("resumed    after step %lld\n", static_cast<long long>(info->step));
  }
  return true;
}

std::int64_t TrainingSession::epoch() const { return batches_.position().at("epoch").as_int(); }

void TrainingSession::train(const std::function<void()>& loop) {
  if (workers_ && starts_workers_again()) {
    recovery_.emplace(
        strategy_, make_checkpoint(strategy_, weights_, optimizer_, batches_, record_, saved_step_),
        RecoveryOptions{.restore_from_disk = [this] { restore_latest(); }});
    return recovery_->run([&] {
      noticed_.reset();  // a restarted worker has not received the signal
      grace_ends_.reset();
      loop();
    });
  }
  loop();
}

/// Returns true if the run must stop. All workers stop after the same step, even if only one of
/// them is asked to stop.
bool TrainingSession::is_asked_to_stop() {
  if (internal::StopSignals::requested() != 0) {
    if (!internal::team_of(strategy_)) return true;
    strategy_.request_stop("a signal");
  }
  return strategy_.stops_after(record_.steps());
}

/// Returns true if the run must end here because of a signal: immediately, or after the grace
/// period.
bool TrainingSession::stops_because_of_signal() {
  const bool has_signal = internal::StopSignals::requested() != 0;
  const bool is_second = has_signal && grace_ends_ && noticed_;
  if (has_signal && !noticed_) noticed_ = options_.clock->now();
  if (grace_ends_) {
    internal::StopSignals::acknowledge();
    const Duration room = 2 * (longest_step_ + save_duration_);
    const bool is_over = options_.clock->now() >= *grace_ends_ - room;
    return on_any_replica(strategy_, is_second || is_over);
  }
  if (!is_asked_to_stop()) return false;
  if (options_.grace_period == Duration::zero()) return true;
  begin_grace();
  return false;
}

/// Begins the grace period. Called on all workers after the same step.
void TrainingSession::begin_grace() {
  const TimePoint begin = options_.clock->now();
  internal::StopSignals::acknowledge();
  save_because_of_signal();
  if (checkpoints_) checkpoints_->wait();
  save_duration_ = options_.clock->now() - begin;
  grace_ends_ = deadline_after(noticed_.value_or(begin), options_.grace_period);
}

void TrainingSession::save_because_of_signal() {
  if (!options_.save_on_signal) return save();
  options_.save_on_signal(record_.steps());
  saved_step_ = record_.steps();
}

bool TrainingSession::stopped() const {
  return stopped_on_request_ || (options_.steps > 0 && record_.steps() >= options_.steps);
}

bool TrainingSession::begin_epoch() {
  if (stopped() || epoch() >= options_.epochs) return false;
  first_step_of_epoch_ = record_.steps() - batches_.position().at("batches").as_int();
  std::optional<std::int64_t> steps = batches_.cardinality();
  if (steps == kInfinite) {
    steps = options_.steps - first_step_of_epoch_;
  } else if (steps && options_.steps > 0) {
    steps = std::min(*steps, options_.steps - first_step_of_epoch_);
  }
  take_times();
  split_ = {};  // excludes the time spent in evaluation
  loss_sum_ = 0.0;
  loss_rows_ = 0;
  step_began_ = options_.clock->now();
  if (progress_) progress_->begin_epoch(epoch(), options_.epochs, steps);
  return true;
}

void TrainingSession::take_times() {
  const Strategy::RunTimes times = strategy_.take_run_times();
  split_.communication += times.communication;
  split_.compute += std::max(0.0, times.run - times.communication);
  split_.input_wait += batches_.take_wait_seconds();
}

bool TrainingSession::step(float loss, std::int64_t examples) {
  record_.step(loss, examples);
  take_times();
  loss_sum_ += static_cast<double>(loss) * static_cast<double>(examples);
  loss_rows_ += examples;
  const std::pair<std::string, double> values[] = {{"loss", mean_loss()}};
  if (progress_) progress_->step(record_.steps() - first_step_of_epoch_, examples, values);
  log_scalar("loss", loss);
  if (recovery_) recovery_->commit(record_.steps());
  longest_step_ = std::max(longest_step_, options_.clock->now() - step_began_);
  stopped_on_request_ = stops_because_of_signal();
  step_began_ = options_.clock->now();
  if (!stopped()) return true;
  stopped_on_request_ ? save_because_of_signal() : save();
  return false;
}

void TrainingSession::end_epoch(const std::string& metric, double value) {
  last_value_ = value;
  last_metric_ = metric;
  std::vector<std::pair<std::string, double>> values;
  if (loss_rows_ > 0) values.emplace_back("loss", mean_loss());
  values.emplace_back("test " + metric, value);
  const TimeSplit split = strategy_.num_replicas_in_sync() > 1 ? split_ : TimeSplit{};
  if (progress_) progress_->end_epoch(values, split);
  log_scalar("test_" + metric, value);
  save();
}

void TrainingSession::save() {
  if (!checkpoints_ || saved_step_ == record_.steps()) return;
  saved_step_ = record_.steps();
  checkpoints_->save(saved_step_);
}

void TrainingSession::log_scalar(const std::string& tag, double value) {
  if (!events_) return;
  events_->scalar(tag, record_.steps(), value);
  Json line = Json::object();
  line.set("step", record_.steps());
  line.set(tag, value);
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream(options_.log_dir + "/log.jsonl", std::ios::app) << line.dump() << '\n';
}

int TrainingSession::finish() {
  const std::string weights_hash =
      hash_variables(weights_);  // collective: all workers read the weights
  if (progress_) {
    const std::string metric =
        last_metric_.empty() ? "" : concat(", test ", last_metric_, " ", value_text(last_value_));
    std::printf("result     %lld steps, %.0f examples/s%s, weights %s\n",
                static_cast<long long>(record_.steps()), record_.examples_per_second(),
                metric.c_str(), weights_hash.c_str());
  }
  if (checkpoints_) checkpoints_->wait();
  if (!stopped_on_request_) return 0;
  const bool is_saved = !checkpoints_ || !checkpoints_->last_error();
  if (progress_) std::printf("%s\n", stop_text(is_saved).c_str());
  return is_saved ? kStoppedOnRequest : 1;
}

/// Returns a message that states what stopped the run and how to continue it.
std::string TrainingSession::stop_text(bool is_saved) const {
  const std::string what =
      concat("stopped    by ", internal::StopSignals::last_name(), " after step ", record_.steps());
  if (options_.save_on_signal) return what;
  if (!checkpoints_) return what + "; nothing was saved; set a checkpoint_dir";
  if (!is_saved) return what + "; the checkpoint of this step could not be written";
  return concat(what, ", saved in ", options_.checkpoint_dir, "; to continue, set resume");
}

}  // namespace tutti
