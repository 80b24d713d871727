// Ends training when a value no longer gets better.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/model/callback.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// What is better: kAuto takes the larger value for names with "acc", else the smaller.
enum class MonitorMode { kAuto, kMin, kMax };

/// Whether `value` is better than `best` by more than `min_delta`.
bool is_better(MonitorMode mode, const std::string& monitor, double value, double best,
               double min_delta);
/// The worst value: what every number is better than.
double worst_value(MonitorMode mode, const std::string& monitor);

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  /// Smaller changes do not count.
  double min_delta = 0.0;
  /// Epochs without improvement that are waited for.
  std::int64_t patience = 0;
  MonitorMode mode = MonitorMode::kAuto;
  /// An epoch that is not better than this does not count as improvement either.
  std::optional<double> baseline = std::nullopt;
  /// After stopping the weights are those of the best epoch.
  bool restore_best_weights = false;
};

/// Keras's EarlyStopping. A monitored name that the logs lack gives a warning that lists the names.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  void on_train_begin() override;
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
  void restore_weights();

  EarlyStoppingOptions options_;
  double best_ = 0.0;
  std::int64_t best_epoch_ = 0;
  std::int64_t waited_ = 0;
  std::optional<std::int64_t> stopped_epoch_;
  std::vector<Tensor> best_weights_;  // in the order of Model::variables()
};

}  // namespace tutti
