// The learning rate in training: by epoch, by progress, by the size of the global batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tutti/model/callback.h"

namespace tutti {

// Sets the learning rate by epoch or by batch.

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

// Lowers the learning rate when a value no longer gets better.

struct ReduceLROnPlateauOptions {
  std::string monitor = "val_loss";
  /// The rate is multiplied by it, in (0, 1).
  double factor = 0.1;
  /// Epochs without improvement that are waited for.
  std::int64_t patience = 10;
  MonitorMode mode = MonitorMode::kAuto;
  /// Smaller changes do not count.
  double min_delta = 1e-4;
  /// Epochs after a change in which nothing is counted.
  std::int64_t cooldown = 0;
  /// The rate does not go below.
  double min_lr = 0.0;
};

/// Keras's ReduceLROnPlateau. The optimizer's rate must be a number, not a schedule. The epoch's
/// logs hold "learning_rate".
class ReduceLROnPlateau : public Callback {
 public:
  explicit ReduceLROnPlateau(ReduceLROnPlateauOptions options = {});
  void on_train_begin() override;
  void add_to_logs(std::int64_t epoch, Logs& logs) override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  void reduce();

  ReduceLROnPlateauOptions options_;
  internal::Monitor monitor_;
  double best_ = internal::Monitor::kNothing;
  std::int64_t waited_ = 0;
  std::int64_t cooling_ = 0;
};

// How the learning rate follows the global batch when replicas are added.

/// kLinear: rate * k for a batch k times as large (Goyal et al., "Accurate, large minibatch SGD",
/// 2017); kSquareRoot: rate * sqrt(k) (for adaptive methods).
enum class LearningRateScaling { kLinear, kSquareRoot };

/// The rate for `global_batch` when `base_rate` is right for `base_batch`. Both batches > 0.
double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch,
                            LearningRateScaling scaling = LearningRateScaling::kLinear);

/// The rate that a table gives for a global batch: tf's guide has {{5, 0.1}, {10, 0.15}}. Throws
/// kNotFound listing the batches of the table.
double learning_rate_for_batch(const std::map<std::int64_t, double>& rates_by_global_batch,
                               std::int64_t global_batch);

}  // namespace tutti
