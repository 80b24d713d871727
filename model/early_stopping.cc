// Ends training when a value no longer gets better.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/early_stopping.h"

#include <limits>

#include "tutti/model/exact_number.h"
#include "tutti/model/model.h"
#include "tutti/model/monitored_value.h"

namespace tutti {
namespace {

bool larger_is_better(MonitorMode mode, const std::string& monitor) {
  return mode == MonitorMode::kMax ||
         (mode == MonitorMode::kAuto && monitor.find("acc") != std::string::npos);
}

}  // namespace

bool is_better(MonitorMode mode, const std::string& monitor, double value, double best,
               double min_delta) {
  return larger_is_better(mode, monitor) ? value - min_delta > best : value + min_delta < best;
}

double worst_value(MonitorMode mode, const std::string& monitor) {
  const double infinity = std::numeric_limits<double>::infinity();
  return larger_is_better(mode, monitor) ? -infinity : infinity;
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
  if (options_.patience < 0 || options_.min_delta < 0.0) {
    fail(ErrorCode::kInvalidArgument,
         "EarlyStopping: expected patience and min_delta of at least 0, got ", options_.patience,
         " and ", options_.min_delta);
  }
}

void EarlyStopping::on_train_begin() {
  best_ = worst_value(options_.mode, options_.monitor);
  best_epoch_ = waited_ = 0;
  stopped_epoch_.reset();
  best_weights_.clear();
}

void EarlyStopping::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  const std::optional<double> value =
      internal::monitored_value("EarlyStopping", options_.monitor, logs);
  if (!value) return;
  ++waited_;
  if (is_better(options_.mode, options_.monitor, *value, best_, options_.min_delta)) {
    best_ = *value;
    best_epoch_ = epoch;
    if (options_.restore_best_weights) keep_weights();
    if (!options_.baseline ||
        is_better(options_.mode, options_.monitor, *value, *options_.baseline, 0.0)) {
      waited_ = 0;
    }
  }
  // As in Keras the first epoch is never the last.
  if (waited_ == 0 || waited_ < options_.patience || epoch == 0) return;
  stopped_epoch_ = epoch;
  model().stop_training();
  if (options_.restore_best_weights) restore_weights();
}

void EarlyStopping::keep_weights() {
  best_weights_.clear();
  for (const Variable& variable : model().variables()) best_weights_.push_back(variable.value());
}

void EarlyStopping::restore_weights() {
  std::vector<Variable> variables = model().variables();
  for (std::size_t i = 0; i < best_weights_.size(); ++i) variables[i].assign(best_weights_[i]);
}

Json EarlyStopping::save_state() const {
  Json state = Json::object();
  state.set("best", internal::exact_number(best_)).set("best_epoch", best_epoch_);
  state.set("waited", waited_).set("stopped_epoch", stopped_epoch_.value_or(-1));
  return state;
}

void EarlyStopping::restore_state(const Json& state) {
  best_ = internal::number_of(state.at("best"));
  best_epoch_ = state.at("best_epoch").as_int();
  waited_ = state.at("waited").as_int();
  const std::int64_t stopped = state.at("stopped_epoch").as_int();
  stopped_epoch_ = stopped >= 0 ? std::optional(stopped) : std::nullopt;
}

}  // namespace tutti
