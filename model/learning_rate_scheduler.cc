// Sets the learning rate by epoch or by batch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/learning_rate_scheduler.h"

#include "tutti/model/model.h"

namespace tutti {

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

}  // namespace tutti
