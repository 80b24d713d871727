// Sets the learning rate by epoch or by batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "tutti/model/callback.h"

namespace tutti {

/// Before each epoch: rate = schedule(epoch, present rate). The epoch's logs hold "learning_rate".
class LearningRateScheduler : public Callback {
 public:
  using Schedule = std::function<double(std::int64_t epoch, double learning_rate)>;
  explicit LearningRateScheduler(Schedule schedule) : schedule_(std::move(schedule)) {}
  void on_epoch_begin(std::int64_t epoch) override;
  void add_to_logs(std::int64_t epoch, Logs& logs) override;

 private:
  Schedule schedule_;
};

/// Before each training batch: rate = schedule(batch of the epoch, present rate).
class BatchLearningRateScheduler : public Callback {
 public:
  using Schedule = std::function<double(std::int64_t batch, double learning_rate)>;
  explicit BatchLearningRateScheduler(Schedule schedule) : schedule_(std::move(schedule)) {}
  void on_train_batch_begin(std::int64_t batch) override;

 private:
  Schedule schedule_;
};

}  // namespace tutti
