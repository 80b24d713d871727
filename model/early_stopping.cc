// Callbacks that end training early.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/early_stopping.h"

#include <cmath>
#include <map>

#include "tutti/core/logging.h"
#include "tutti/model/logs.h"
#include "tutti/model/model.h"

namespace tutti {

// Ends training when a value no longer gets better.

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), monitor_("EarlyStopping", options_.monitor, options_.mode) {
  if (options_.patience < 0 || options_.min_delta < 0.0) {
    fail(ErrorCode::kInvalidArgument,
         "EarlyStopping: expected patience and min_delta of at least 0, got ", options_.patience,
         " and ", options_.min_delta);
  }
}

void EarlyStopping::on_train_begin() {
  (void)monitor_.larger_is_better(model());  // is refused before the first epoch
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
  // As in Keras the first epoch is never the last.
  if (waited_ == 0 || waited_ < options_.patience || epoch == 0) return;
  stopped_epoch_ = epoch;
  model().stop_training();
}

/// Behind the optimizer's last word: with `.ema` it writes averages into the weights.
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
  state.set("best", internal::exact_number(best_)).set("best_epoch", best_epoch_);
  state.set("waited", waited_).set("stopped_epoch", stopped_epoch_.value_or(-1));
  Json names = Json::array();
  for (const std::string& name : best_names_) names.push_back(name);
  return state.set("best_names", std::move(names));
}

void EarlyStopping::restore_state(const Json& state) {
  best_ = internal::number_of(state.at("best"));
  best_epoch_ = state.at("best_epoch").as_int();
  waited_ = state.at("waited").as_int();
  const std::int64_t stopped = state.at("stopped_epoch").as_int();
  stopped_epoch_ = stopped >= 0 ? std::optional(stopped) : std::nullopt;
  best_names_.clear();
  for (const Json& name : state.at("best_names").as_array())
    best_names_.push_back(name.as_string());
}

// Ends training when the loss is no number.

void TerminateOnNaN::on_train_begin() { reason_.clear(); }

void TerminateOnNaN::on_train_batch_end(std::int64_t batch, const Logs& logs) {
  if (!logs.has("loss") || std::isfinite(logs.at("loss"))) return;
  const std::int64_t step = model().optimizer().iterations().value().item_int() - 1;
  const std::vector<int> replicas = model().replicas_without_finite_loss();
  // Shares that are finite one by one can still add up to infinity.
  const std::string whose = replicas.empty()
                                ? "the sum over replicas overflowed"
                                : concat("the loss of replica ", join(replicas), " is not finite");
  reason_ = concat("TerminateOnNaN: the loss is ", logs.at("loss"), " in epoch ", epoch_,
                   ", batch ", batch, " (step ", step, "): ", whose,
                   "; training ends; try a smaller learning rate or clipping");
  log(LogLevel::kError, reason_);
  model().stop_training();
}

}  // namespace tutti
