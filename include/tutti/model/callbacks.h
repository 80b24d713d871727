// Callbacks that steer training: its end, and the learning rate. All other callbacks, too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/model/callback.h"
#include "tutti/model/log_files.h"
#include "tutti/model/model_checkpoint.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// Ends training when a value no longer gets better.

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  /// Smaller changes do not count.
  double min_delta = 0.0;
  /// Epochs without improvement that are waited for.
  std::int64_t patience = 0;
  MonitorMode mode = MonitorMode::kAuto;
  /// An epoch that is not better than this does not count as improvement either.
  std::optional<double> baseline = std::nullopt;
  /// When fit ends, stopped or not, the weights are those of the best epoch: each replica's own,
  /// and not averages that an optimizer with `.ema` writes last.
  bool restore_best_weights = false;
  /// Epochs before this one are not looked at.
  std::int64_t start_from_epoch = 0;
};

/// Keras's EarlyStopping. A monitored name that the logs lack gives a warning that lists the names.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  void on_train_begin() override;
  void on_train_end(const Logs& logs) override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;
  std::vector<Tensor> save_tensors() const override { return best_weights_; }
  void restore_tensors(std::vector<Tensor> tensors) override { best_weights_ = std::move(tensors); }

  /// The epoch in which training was stopped; nothing when it was not.
  std::optional<std::int64_t> stopped_epoch() const { return stopped_epoch_; }
  std::int64_t best_epoch() const { return best_epoch_; }

 private:
  void keep_weights();

  EarlyStoppingOptions options_;
  internal::Monitor monitor_;
  double best_ = internal::Monitor::kNothing;
  std::int64_t best_epoch_ = 0;
  std::int64_t waited_ = 0;
  std::optional<std::int64_t> stopped_epoch_;
  std::vector<Tensor> best_weights_;     // as the variables save themselves,
  std::vector<std::string> best_names_;  // under these names
};

// Ends training when the loss is no number.

/// Stops fit() after the batch whose loss is NaN or infinite, and logs an error that names epoch,
/// batch, step and the replicas whose share it was. Keras's TerminateOnNaN.
class TerminateOnNaN : public Callback {
 public:
  void on_train_begin() override;
  void on_epoch_begin(std::int64_t epoch) override { epoch_ = epoch; }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  Json save_state() const override { return Json(epoch_); }
  void restore_state(const Json& state) override { epoch_ = state.as_int(); }

  /// What was logged; empty when training was not ended.
  const std::string& reason() const { return reason_; }

 private:
  std::int64_t epoch_ = 0;
  std::string reason_;
};

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
