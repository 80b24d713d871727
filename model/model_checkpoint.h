// Saves the model after epochs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/model/callback.h"
#include "tutti/model/monitored_value.h"

namespace tutti {

struct ModelCheckpointOptions {
  /// Saves only epochs that are better than all before.
  bool save_best_only = false;
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kAuto;
  /// Weights alone; otherwise all that training goes on from (Model::checkpoint()).
  bool save_weights_only = false;
  /// Files that are kept, the newest (with save_best_only: the best) of those that this object
  /// wrote; 0: all.
  int max_to_keep = 0;
  /// Saves after every so many batches instead of after epochs.
  std::optional<std::int64_t> save_freq = std::nullopt;
  /// With save_best_only: only what is better than this is saved.
  std::optional<double> initial_value_threshold = std::nullopt;
};

/// After each epoch saves to `path`, in which {epoch} (from 1), {batch} (from 1, with save_freq)
/// and {name} (a value of the logs, four digits) are replaced:
/// "run/{epoch}-{val_loss}.safetensors". Keras's ModelCheckpoint.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(std::string path, ModelCheckpointOptions options = {});
  void on_train_begin() override;
  void on_epoch_begin(std::int64_t epoch) override { epoch_ = epoch; }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

  /// The file written last; empty before.
  const std::string& last_path() const { return last_path_; }
  /// The files that are kept, the oldest first.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  void save(std::int64_t batch, const Logs& logs);
  void delete_old();

  std::string path_;
  ModelCheckpointOptions options_;
  internal::Monitor monitor_;
  double best_;
  std::string last_path_;
  std::vector<std::string> paths_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_ = 0;  // since the last save, with save_freq
};

}  // namespace tutti
