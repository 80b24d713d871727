// Ends training when the loss is no number.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/model/callback.h"

namespace tutti {

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

}  // namespace tutti
