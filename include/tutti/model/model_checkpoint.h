// Callbacks that save: the model, or everything that fit goes on from.
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
/// "run/{epoch}-{val_loss}.safetensors". Keras's ModelCheckpoint, without its formats {epoch:02d}
/// (kInvalidArgument).
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

// Keeps a running fit on the disk, and goes on from there when the program is started again.

struct BackupAndRestoreOptions {
  /// Saves after every so many batches, also in the middle of an epoch; default: after each epoch.
  std::optional<std::int64_t> save_freq = std::nullopt;
  /// When fit() has ended well what was saved is deleted; otherwise the next fit() finds that there
  /// is nothing left to do.
  bool delete_checkpoint = true;
  /// Versions that are kept: should the newest turn out damaged, the one before is taken.
  int max_to_keep = 2;
  /// Asked after each batch, for example for a flag that a handler of SIGTERM has set. When it says
  /// yes, on any worker, all workers stop after a batch that they agree on and save it, and fit()
  /// returns at once: stopped() says so, and the next fit() goes on there. tf's
  /// save_before_preemption.
  std::function<bool()> stop_requested = {};
  /// A full disk need not end training.
  OnSaveError on_error = OnSaveError::kContinue;
};

/// A fit() that was killed and is started again by the same program ends with the bits of one that
/// was not: weights, optimizer, random state, position within the epoch (no example twice, none
/// lost), metrics, callbacks and history are restored, from the newest whole version in
/// `backup_dir`; without one it begins anew. Saved on a thread, as training goes on. With several
/// workers the chief writes and chooses the version, and all get what it has read, so the others
/// need not see its disk. List the same callbacks as before; its place in the list does not matter.
/// Another global batch is refused in the middle of a pass (kFailedPrecondition), not between them.
/// Give each fit() of a program a folder of its own. Keras's BackupAndRestore.
class BackupAndRestore : public Callback {
 public:
  /// Throws kInvalidArgument for an empty folder and numbers that are not positive.
  explicit BackupAndRestore(std::string backup_dir, BackupAndRestoreOptions options = {});
  void on_train_begin() override;
  void on_can_restore() override;
  void on_can_save(const FitPoint& point) override;
  void on_train_end(const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

  /// What the last fit() went on from; nothing when it began anew.
  const std::optional<CheckpointInfo>& restored() const { return restored_; }
  /// Whether the last fit() returned because stop_requested() had said yes.
  bool stopped() const { return stopped_; }

 private:
  bool stops_here();

  std::string backup_dir_;
  BackupAndRestoreOptions options_;
  std::optional<CheckpointManager> manager_;  // of the fit that runs
  std::optional<CheckpointInfo> restored_;
  std::int64_t saved_steps_ = 0;  // FitPoint::steps at the last save
  std::int64_t asked_ = 0;        // how often workers were asked whether to stop
  bool stopped_ = false;
};

}  // namespace tutti
