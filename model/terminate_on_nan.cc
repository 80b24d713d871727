// Ends training when the loss is no number.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/terminate_on_nan.h"

#include <cmath>

#include "tutti/core/logging.h"
#include "tutti/model/model.h"

namespace tutti {

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
