// Lowers the learning rate when a value no longer gets better.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/callback.h"
#include "tutti/model/monitored_value.h"

namespace tutti {

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

}  // namespace tutti
