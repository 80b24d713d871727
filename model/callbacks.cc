// Callbacks that end training or set the learning rate.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/callbacks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/model/callback.h"
#include "tutti/model/model.h"

namespace tutti {

// EarlyStopping: ends training when a value stops improving.

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), monitor_("EarlyStopping", options_.monitor, options_.mode) {
  if (options_.patience < 0 || options_.min_delta < 0.0) {
    fail(ErrorCode::kInvalidArgument, "EarlyStopping: expected patience and min_delta >= 0, got ",
         options_.patience, " and ", options_.min_delta);
  }
}

void EarlyStopping::on_train_begin() {
  (void)monitor_.larger_is_better(model());  // throws if the direction is unknown
  best_ = internal::Monitor::kNothing;
  best_epoch_ = waited_ = 0;
  stopped_epoch_.reset();
  best_weights_.clear();
  best_names_.clear();
}

void EarlyStopping::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  const std::optional<double> value = monitor_.value(logs);
  if (!value || epoch < options_.start_from_epoch) return;
  ++waited_;
  const bool better = monitor_.is_better(model(), *value, best_, options_.min_delta);
  if (options_.restore_best_weights && (better || best_weights_.empty())) {
    keep_weights();
    best_epoch_ = epoch;
  }
  if (better) {
    best_ = *value;
    best_epoch_ = epoch;
    if (!options_.baseline ||
        monitor_.is_better(model(), *value, *options_.baseline, options_.min_delta)) {
      waited_ = 0;
    }
  }
  // As in Keras, the first epoch never ends training.
  if (waited_ == 0 || waited_ < options_.patience || epoch == 0) return;
  stopped_epoch_ = epoch;
  model().stop_training();
}

/// Restores the weights after the optimizer has finished, because an optimizer with `.ema` writes
/// averages into them when it finishes.
void EarlyStopping::on_train_end(const Logs&) {
  if (!options_.restore_best_weights || best_weights_.empty()) return;
  std::map<std::string, Tensor> best;
  for (std::size_t i = 0; i < best_names_.size(); ++i) best[best_names_[i]] = best_weights_[i];
  for (const Variable& variable : model().variables()) {
    variable.storage().restore([&](const std::string& name) {
      const auto found = best.find(name);
      return found == best.end() ? Tensor() : found->second;
    });
  }
}

void EarlyStopping::keep_weights() {
  best_weights_.clear();
  best_names_.clear();
  for (const Variable& variable : model().variables()) {
    for (const NamedTensor& part : variable.storage().save()) {
      best_names_.push_back(part.name);
      best_weights_.push_back(part.value);
    }
  }
}

Json EarlyStopping::save_state() const {
  Json state = Json::object();
  state.set("best", json_of(best_)).set("best_epoch", best_epoch_);
  state.set("waited", waited_).set("stopped_epoch", stopped_epoch_.value_or(-1));
  return state.set("best_names", json_of(best_names_));
}

void EarlyStopping::restore_state(const Json& state) {
  best_ = value_of<double>(state.at("best"));
  best_epoch_ = state.at("best_epoch").as_int();
  waited_ = state.at("waited").as_int();
  const std::int64_t stopped = state.at("stopped_epoch").as_int();
  stopped_epoch_ = stopped >= 0 ? std::optional(stopped) : std::nullopt;
  best_names_ = value_of<std::vector<std::string>>(state.at("best_names"));
}

// TerminateOnNaN: ends training when the loss is NaN or infinite.

void TerminateOnNaN::on_train_begin() { reason_.clear(); }

void TerminateOnNaN::on_train_batch_end(std::int64_t batch, const Logs& logs) {
  if (!logs.has("loss") || std::isfinite(logs.at("loss"))) return;
  const std::int64_t step = model().optimizer().iterations().value().item_int() - 1;
  const std::vector<int> replicas = model().replicas_without_finite_loss();
  // If the losses of all replicas are finite, their sum overflowed.
  const std::string whose = replicas.empty()
                                ? "the sum over replicas overflowed"
                                : concat("the loss of replica ", join(replicas), " is not finite");
  reason_ = concat("TerminateOnNaN: the loss is ", logs.at("loss"), " in epoch ", epoch_,
                   ", batch ", batch, " (step ", step, "): ", whose,
                   "; training ends; try a smaller learning rate or clipping");
  log(LogLevel::kError, reason_);
  model().stop_training();
}

// LearningRateScheduler: sets the learning rate for each epoch or batch.

void LearningRateScheduler::on_epoch_begin(std::int64_t epoch) {
  Optimizer& optimizer = model().optimizer();
  optimizer.set_learning_rate(schedule_(epoch, optimizer.learning_rate()));
}

void LearningRateScheduler::add_to_logs(std::int64_t, Logs& logs) {
  logs.set("learning_rate", model().optimizer().learning_rate());
}

void BatchLearningRateScheduler::on_train_batch_begin(std::int64_t batch) {
  Optimizer& optimizer = model().optimizer();
  optimizer.set_learning_rate(schedule_(batch, optimizer.learning_rate()));
}

// ReduceLROnPlateau: lowers the learning rate when a value stops improving.

ReduceLROnPlateau::ReduceLROnPlateau(ReduceLROnPlateauOptions options)
    : options_(std::move(options)), monitor_("ReduceLROnPlateau", options_.monitor, options_.mode) {
  internal::require(options_.factor > 0.0 && options_.factor < 1.0,
                    "ReduceLROnPlateau: expected a factor in (0, 1), got ", options_.factor);
  if (options_.patience < 0 || options_.cooldown < 0 || options_.min_lr < 0.0) {
    fail(ErrorCode::kInvalidArgument,
         "ReduceLROnPlateau: expected patience, cooldown and min_lr >= 0, got ", options_.patience,
         ", ", options_.cooldown, " and ", options_.min_lr);
  }
}

void ReduceLROnPlateau::on_train_begin() {
  (void)monitor_.larger_is_better(model());  // throws if the direction is unknown
  best_ = internal::Monitor::kNothing;
  waited_ = cooling_ = 0;
}

void ReduceLROnPlateau::add_to_logs(std::int64_t, Logs& logs) {
  logs.set("learning_rate", model().optimizer().learning_rate());
}

void ReduceLROnPlateau::on_epoch_end(std::int64_t, const Logs& logs) {
  const std::optional<double> value = monitor_.value(logs);
  if (!value) return;
  if (cooling_ > 0) {
    --cooling_;
    waited_ = 0;
  }
  if (monitor_.is_better(model(), *value, best_, options_.min_delta)) {
    best_ = *value;
    waited_ = 0;
  } else if (cooling_ == 0 && ++waited_ >= options_.patience) {
    reduce();
  }
}

void ReduceLROnPlateau::reduce() {
  Optimizer& optimizer = model().optimizer();
  const double rate = optimizer.learning_rate();
  if (rate <= options_.min_lr) return;
  optimizer.set_learning_rate(std::max(rate * options_.factor, options_.min_lr));
  cooling_ = options_.cooldown;
  waited_ = 0;
}

Json ReduceLROnPlateau::save_state() const {
  Json state = Json::object();
  state.set("best", json_of(best_)).set("waited", waited_).set("cooling", cooling_);
  return state;
}

void ReduceLROnPlateau::restore_state(const Json& state) {
  best_ = value_of<double>(state.at("best"));
  waited_ = state.at("waited").as_int();
  cooling_ = state.at("cooling").as_int();
}

// Scales the learning rate with the global batch size.

double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch,
                            LearningRateScaling scaling) {
  internal::require(base_batch > 0 && global_batch > 0,
                    "scaled_learning_rate: expected positive batch sizes, got ", base_batch,
                    " and ", global_batch);
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(base_batch);
  return base_rate * (scaling == LearningRateScaling::kLinear ? ratio : std::sqrt(ratio));
}

double learning_rate_for_batch(const std::map<std::int64_t, double>& rates_by_global_batch,
                               std::int64_t global_batch) {
  const auto found = rates_by_global_batch.find(global_batch);
  if (found != rates_by_global_batch.end()) return found->second;
  const auto batches = internal::names_of(
      rates_by_global_batch, [](const auto& entry) { return std::to_string(entry.first); });
  fail(ErrorCode::kNotFound, "learning_rate_for_batch: no rate for a global batch of ",
       global_batch, "; expected one of ", join(batches), "; or call scaled_learning_rate()");
}

}  // namespace tutti
