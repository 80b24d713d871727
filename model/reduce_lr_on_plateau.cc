// Lowers the learning rate when a value no longer gets better.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/reduce_lr_on_plateau.h"

#include <algorithm>

#include "tutti/model/exact_number.h"
#include "tutti/model/model.h"

namespace tutti {

ReduceLROnPlateau::ReduceLROnPlateau(ReduceLROnPlateauOptions options)
    : options_(std::move(options)), monitor_("ReduceLROnPlateau", options_.monitor, options_.mode) {
  if (!(options_.factor > 0.0 && options_.factor < 1.0)) {
    fail(ErrorCode::kInvalidArgument, "ReduceLROnPlateau: expected a factor in (0, 1), got ",
         options_.factor);
  }
  if (options_.patience < 0 || options_.cooldown < 0 || options_.min_lr < 0.0) {
    fail(ErrorCode::kInvalidArgument,
         "ReduceLROnPlateau: expected patience, cooldown and min_lr of at least 0, got ",
         options_.patience, ", ", options_.cooldown, " and ", options_.min_lr);
  }
}

void ReduceLROnPlateau::on_train_begin() {
  (void)monitor_.larger_is_better(model());  // is refused before the first epoch
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
  state.set("best", internal::exact_number(best_)).set("waited", waited_).set("cooling", cooling_);
  return state;
}

void ReduceLROnPlateau::restore_state(const Json& state) {
  best_ = internal::number_of(state.at("best"));
  waited_ = state.at("waited").as_int();
  cooling_ = state.at("cooling").as_int();
}

}  // namespace tutti
