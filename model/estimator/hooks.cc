// Hooks of an Estimator.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/estimator/hooks.h"

#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti {

StopAtStepHook::StopAtStepHook(Options options) : options_(options) {
  if (options_.num_steps.has_value() != options_.last_step.has_value()) return;
  fail(ErrorCode::kInvalidArgument,
       "StopAtStepHook: expected num_steps or last_step, got both or none");
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

}  // namespace tutti
