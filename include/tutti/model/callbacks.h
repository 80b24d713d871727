// Callbacks that end training or set the learning rate. Also includes all other callbacks.
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

// Ends training when a value stops improving.

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  /// Changes up to this size do not count as improvements.
  double min_delta = 0.0;
  /// Number of epochs without improvement after which training stops.
  std::int64_t patience = 0;
  MonitorMode mode = MonitorMode::kAuto;
  /// Value that an improvement must also beat to reset the count of epochs for `patience`.
  std::optional<double> baseline = std::nullopt;
  /// Restores the weights of the best epoch when fit() ends, even if training was not stopped
  /// early. Restores each replica's weights, not the averages that an optimizer with `.ema` writes
  /// at the end.
  bool restore_best_weights = false;
  /// First epoch that is monitored.
  std::int64_t start_from_epoch = 0;
};

/// Keras's EarlyStopping. If the logs lack the monitored value, a warning lists the values in the
/// logs.
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

  /// Returns the epoch in which this callback stopped training, or nullopt.
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
  std::vector<Tensor> best_weights_;     // components of the variables
  std::vector<std::string> best_names_;  // names of the components in best_weights_
};

// Ends training when the loss is not finite.

/// Stops fit() after a batch whose loss is NaN or infinite, and logs an error naming the epoch,
/// batch, step and replicas. Corresponds to Keras's TerminateOnNaN.
class TerminateOnNaN : public Callback {
 public:
  void on_train_begin() override;
  void on_epoch_begin(std::int64_t epoch) override { epoch_ = epoch; }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  Json save_state() const override { return Json(epoch_); }
  void restore_state(const Json& state) override { epoch_ = state.as_int(); }

  /// Returns the logged error; empty if this callback did not stop training.
  const std::string& reason() const { return reason_; }

 private:
  std::int64_t epoch_ = 0;
  std::string reason_;
};

// Sets the learning rate by epoch or by batch.

/// Sets the learning rate to schedule(epoch, rate) before each epoch, and adds it to the logs as
/// "learning_rate".
class LearningRateScheduler : public Callback {
 public:
  using Schedule = std::function<double(std::int64_t epoch, double learning_rate)>;
  explicit LearningRateScheduler(Schedule schedule) : schedule_(std::move(schedule)) {}
  void on_epoch_begin(std::int64_t epoch) override;
  void add_to_logs(std::int64_t epoch, Logs& logs) override;

 private:
  Schedule schedule_;
};

/// Sets the learning rate to schedule(batch, rate) before each training batch; `batch` is the index
/// within the epoch.
class BatchLearningRateScheduler : public Callback {
 public:
  using Schedule = std::function<double(std::int64_t batch, double learning_rate)>;
  explicit BatchLearningRateScheduler(Schedule schedule) : schedule_(std::move(schedule)) {}
  void on_train_batch_begin(std::int64_t batch) override;

 private:
  Schedule schedule_;
};

// ReduceLROnPlateau: lowers the learning rate when a monitored value stops improving.

struct ReduceLROnPlateauOptions {
  std::string monitor = "val_loss";
  /// Factor in (0, 1) by which the rate is multiplied.
  double factor = 0.1;
  /// Number of epochs without improvement after which the rate is reduced.
  std::int64_t patience = 10;
  MonitorMode mode = MonitorMode::kAuto;
  /// Changes up to this size do not count as improvements.
  double min_delta = 1e-4;
  /// Number of epochs after a reduction that do not count towards `patience`.
  std::int64_t cooldown = 0;
  /// Lower bound on the learning rate.
  double min_lr = 0.0;
};

/// Keras's ReduceLROnPlateau. Adds "learning_rate" to the epoch's logs. The optimizer's learning
/// rate must be a number, not a schedule.
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

// Scales the learning rate with the global batch size.

/// Scaling of the learning rate for a batch k times as large. kLinear: rate * k (Goyal et al.,
/// "Accurate, large minibatch SGD", 2017). kSquareRoot: rate * sqrt(k), for adaptive methods.
enum class LearningRateScaling { kLinear, kSquareRoot };

/// Returns the learning rate for `global_batch`, given that `base_rate` suits `base_batch`. Both
/// batch sizes must be > 0.
double scaled_learning_rate(double base_rate, std::int64_t base_batch, std::int64_t global_batch,
                            LearningRateScaling scaling = LearningRateScaling::kLinear);

/// Returns the learning rate that a table such as {{5, 0.1}, {10, 0.15}} (from tf's guide) lists
/// for a global batch size. Throws kNotFound, listing the table's batch sizes, if the table lacks
/// this size.
double learning_rate_for_batch(const std::map<std::int64_t, double>& rates_by_global_batch,
                               std::int64_t global_batch);

}  // namespace tutti
