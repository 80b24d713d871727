// Keeps a running fit on the disk, and goes on from there when the program is started again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/model/callback.h"

namespace tutti {

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
/// `backup_dir`; without one it begins anew. Saved on a thread, while training goes on. Of several
/// workers the chief writes and chooses the version, and all get what it has read, so the others
/// need not see its disk. List the same callbacks as before; its place in the list does not matter.
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
