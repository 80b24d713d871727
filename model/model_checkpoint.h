// Saves the model after epochs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/callback.h"
#include "tutti/model/early_stopping.h"

namespace tutti {

struct ModelCheckpointOptions {
  /// Saves only epochs that are better than all before.
  bool save_best_only = false;
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kAuto;
  /// Weights alone; otherwise all that training goes on from (Model::checkpoint()).
  bool save_weights_only = false;
};

/// After each epoch saves to `path`, in which {epoch} (from 1) and {name} (a value of the logs,
/// four digits) are replaced: "run/{epoch}-{val_loss}.safetensors". Keras's ModelCheckpoint.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(std::string path, ModelCheckpointOptions options = {});
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;

  /// The file written last; empty before.
  const std::string& last_path() const { return last_path_; }

 private:
  std::string path_;
  ModelCheckpointOptions options_;
  double best_;
  std::string last_path_;
};

}  // namespace tutti
