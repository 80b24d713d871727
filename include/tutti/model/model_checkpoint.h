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
  /// Saves only epochs that are better than all earlier ones.
  bool save_best_only = false;
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kAuto;
  /// Saves only weights; otherwise everything needed to continue training (Model::checkpoint()).
  bool save_weights_only = false;
  /// Number of files to keep, of those that this object wrote: the newest ones, or the best ones
  /// with save_best_only. 0: all.
  int max_to_keep = 0;
  /// Batches between two saves. Default: saves after each epoch.
  std::optional<std::int64_t> save_freq = std::nullopt;
  /// Initial best value with save_best_only: only better values are saved.
  std::optional<double> initial_value_threshold = std::nullopt;
};

/// Saves to `path` after each epoch. In the path, {epoch} (from 1), {batch} (from 1, with
/// save_freq) and {name} (a value of the logs, four digits) are replaced:
/// "run/{epoch}-{val_loss}.safetensors". Keras's ModelCheckpoint, except that formats such as
/// {epoch:02d} throw kInvalidArgument.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(std::string path, ModelCheckpointOptions options = {});
  void on_train_begin() override;
  void on_epoch_begin(std::int64_t epoch) override { epoch_ = epoch; }
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

  /// Last file written; empty before the first.
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

// Saves a running fit() on disk, and resumes it when the program is restarted.

struct BackupAndRestoreOptions {
  /// Batches between two saves, also within an epoch. Default: saves after each epoch.
  std::optional<std::int64_t> save_freq = std::nullopt;
  /// Deletes the saved state when fit() has ended successfully; otherwise the next fit() finds
  /// nothing left to do.
  bool delete_checkpoint = true;
  /// Number of versions to keep: if the newest is damaged, the one before it is restored.
  int max_to_keep = 2;
  /// Called after each batch, for example to check a flag that a SIGTERM handler sets. If it
  /// returns true on any worker, all workers save after an agreed batch and fit() returns at once.
  /// stopped() is then true, and the next fit() continues there. Not together with
  /// FitOptions::stop_on_signals. tf's save_before_preemption.
  std::function<bool()> stop_requested = {};
  /// By default a failed save, for example on a full disk, does not end training.
  OnSaveError on_error = OnSaveError::kContinue;
};

/// Lets a restarted program continue an interrupted fit() and end with the bits of an uninterrupted
/// one. Restores weights, optimizer, random state, position within the epoch (no example is
/// repeated or lost), metrics, callbacks and history from the newest intact version in
/// `backup_dir`; without one, training starts from the beginning. Saves on a background thread.
/// With several workers the chief writes and selects the version and sends it to the others, which
/// need no access to its disk. List the same callbacks as before; the position of this one does not
/// matter. A different global batch size throws kFailedPrecondition in the middle of a pass, but
/// not between passes. Give each fit() of a program its own folder. Keras's BackupAndRestore.
class BackupAndRestore : public Callback {
 public:
  /// Throws kInvalidArgument for an empty folder or a number that is not positive.
  explicit BackupAndRestore(std::string backup_dir, BackupAndRestoreOptions options = {});
  void on_train_begin() override;
  void on_can_restore() override;
  void on_can_save(const FitPoint& point) override;
  void on_train_end(const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

  /// Checkpoint from which the last fit() resumed; nullopt if it started from the beginning.
  const std::optional<CheckpointInfo>& restored() const { return restored_; }
  /// Returns true if the last fit() returned early because of stop_requested() or of
  /// FitOptions::stop_on_signals, and its state was saved here.
  bool stopped() const { return stopped_; }
  const std::string& backup_dir() const { return backup_dir_; }
  bool has_stop_request() const { return static_cast<bool>(options_.stop_requested); }
  /// Error of the last save of the last fit(), which is logged, too; nullopt if it succeeded.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  bool stops_here();

  std::string backup_dir_;
  BackupAndRestoreOptions options_;
  std::optional<CheckpointManager> manager_;  // of the running fit()
  std::optional<CheckpointInfo> restored_;
  std::int64_t saved_steps_ = 0;  // FitPoint::steps at the last save
  std::int64_t asked_ = 0;        // number of calls of stop_requested()
  bool stopped_ = false;
  std::optional<Error> last_error_;
};

}  // namespace tutti
