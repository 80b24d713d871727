// Callbacks that save the model, or the state of a running fit().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/model/callback.h"

namespace tutti {

// Saves the model after epochs.

struct ModelCheckpointOptions {
  /// Saves only after epochs that are better than all earlier epochs.
  bool save_best_only = false;
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kAuto;
  /// If true, saves only the weights; if false, everything needed to continue training
  /// (Model::checkpoint()).
  bool save_weights_only = false;
  /// Number of files written by this object to keep: the newest, or with save_best_only the best. 0
  /// keeps all.
  int max_to_keep = 0;
  /// Number of batches between saves. Default: saves after each epoch.
  std::optional<std::int64_t> save_freq = std::nullopt;
  /// Initial best value for save_best_only; only epochs with better values are saved.
  std::optional<double> initial_value_threshold = std::nullopt;
};

/// Saves to `path` after each epoch or every save_freq batches. In the path, {epoch} and (with
/// save_freq) {batch} are replaced by numbers counted from 1, and {name}, the name of a log value,
/// by that value with four decimals: "run/{epoch}-{val_loss}.safetensors". Same as Keras's
/// ModelCheckpoint, but formats such as {epoch:02d} throw kInvalidArgument.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(std::string path, ModelCheckpointOptions options = {});
  void on_train_begin() override;
  void on_epoch_begin(std::int64_t epoch) override { epoch_ = epoch; }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

  /// Path of the last file written; empty if there is none.
  const std::string& last_path() const { return last_path_; }
  /// Returns the paths of the kept files, oldest first.
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
  std::int64_t batches_ = 0;  // number of batches since the last save, if save_freq is set
};

// Saves a running fit() to disk, and resumes it when the program is restarted.

struct BackupAndRestoreOptions {
  /// Number of batches between saves; saves may fall within an epoch. Default: saves after each
  /// epoch.
  std::optional<std::int64_t> save_freq = std::nullopt;
  /// If true, deletes the saved state when fit() has ended successfully. If false, the next fit()
  /// restores the final state and trains nothing.
  bool delete_checkpoint = true;
  /// Number of versions to keep. If the newest version is damaged, the previous one is restored.
  int max_to_keep = 2;
  /// Called after each batch, for example to check a flag that a SIGTERM handler sets. If it
  /// returns true on any worker, all workers save after a batch on which they agree, and fit()
  /// returns. stopped() is then true, and the next fit() continues after this batch. Cannot be
  /// combined with FitOptions::stop_on_signals. Corresponds to Keras's save_before_preemption.
  std::function<bool()> stop_requested = {};
  /// Action after a failed save, for example on a full disk. By default, training continues.
  OnSaveError on_error = OnSaveError::kContinue;
};

/// Lets a restarted program continue an interrupted fit(); the results are bit-identical to those
/// of an uninterrupted fit(). Restores weights, optimizer, random state, position in the epoch (no
/// example is repeated or lost), metrics, callbacks and history from the newest intact version in
/// `backup_dir`; if there is none, training starts from the beginning. Saves on a background
/// thread. With several workers, the chief writes the versions, selects one to restore, and sends
/// it to the other workers, which need no access to its disk. The resumed fit() must have the same
/// callbacks; the position of this callback in the list does not matter. A different global batch
/// size throws kFailedPrecondition in the middle of a pass, but not between passes. Use a separate
/// folder for each fit() of a program. Corresponds to Keras's BackupAndRestore.
class BackupAndRestore : public Callback {
 public:
  /// Throws kInvalidArgument for an empty folder name, or if save_freq or max_to_keep is below 1.
  explicit BackupAndRestore(std::string backup_dir, BackupAndRestoreOptions options = {});
  void on_train_begin() override;
  void on_can_restore() override;
  void on_can_save(const FitPoint& point) override;
  void on_train_end(const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

  /// Checkpoint from which the last fit() resumed; nullopt if it started from the beginning.
  const std::optional<CheckpointInfo>& restored() const { return restored_; }
  /// Returns true if the last fit() returned early because of stop_requested() or
  /// FitOptions::stop_on_signals, and this callback saved its state.
  bool stopped() const { return stopped_; }
  const std::string& backup_dir() const { return backup_dir_; }
  bool has_stop_request() const { return static_cast<bool>(options_.stop_requested); }
  /// Error of the last save in the last fit(), which was also logged; nullopt if the save
  /// succeeded.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  bool stops_here();

  std::string backup_dir_;
  BackupAndRestoreOptions options_;
  std::optional<CheckpointManager> manager_;  // manager of the running fit()
  std::optional<CheckpointInfo> restored_;
  std::int64_t saved_steps_ = 0;  // FitPoint::steps at the last save
  std::int64_t asked_ = 0;        // number of calls to stop_requested()
  bool stopped_ = false;
  std::optional<Error> last_error_;
};

}  // namespace tutti
