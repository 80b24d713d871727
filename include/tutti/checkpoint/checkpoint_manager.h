// CheckpointManager: a folder with the checkpoints of one run, each committed as a whole.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/core/error.h"

namespace tutti {

namespace internal {
class BackgroundSave;
struct CheckpointWorker;
}  // namespace internal

/// Reaction of CheckpointManager::save() to a disk that is full, read-only or broken.
enum class OnSaveError {
  kThrow,
  kContinue,  // logs the error; training continues, and the next save() tries again
};

struct CheckpointManagerOptions {
  /// Number of newest checkpoints to keep; 0: all.
  int max_to_keep = 5;
  /// If true, save() returns as soon as it has a snapshot of the values, and another thread writes
  /// it. The snapshot shares memory with the variables until a step changes them.
  bool asynchronous = false;
  OnSaveError on_error = OnSaveError::kThrow;
  /// For variables that are sharded across workers (FullyShardedStrategy). true: all workers save
  /// and restore their own parts concurrently in one shared folder; kFailedPrecondition names a
  /// worker that sees another folder. false: worker 0 gathers, writes and reads everything.
  /// Default: true if all workers see the folder (checked by each save), otherwise false, with a
  /// warning. Must be equal on all workers.
  std::optional<bool> sharded = std::nullopt;
};

/// Manager of the versions <directory>/step_<step> of a checkpoint. Each version is a folder with
/// safetensors files, state.json and model.safetensors.index.json. The index has a checksum of
/// every file and is written last, which commits the version. If a crash, a power cut or a full
/// disk interrupts a save at any moment, the earlier versions remain intact (docs/checkpoints.md).
/// Can also read the single files that early versions of tutti wrote. Requires: one writing
/// process. Not thread-safe. Like tf.train.CheckpointManager.
class CheckpointManager {
 public:
  /// Throws kInvalidArgument for a negative max_to_keep. The folder is created by the first save().
  CheckpointManager(Checkpoint checkpoint, std::string directory,
                    CheckpointManagerOptions options = {});
  /// Waits for the save in progress and logs its error, if any.
  ~CheckpointManager();
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;

  /// Saves a version for `step`, replacing an earlier one for that step, then deletes the oldest
  /// versions beyond max_to_keep. Returns the version's path. Requires: step >= 0. Throws (see
  /// OnSaveError) kResourceExhausted if the disk is full, kFailedPrecondition if another process is
  /// saving into this folder, and kUnavailable for other failures. An asynchronous save first waits
  /// for the previous save; if that failed, throws its error (see OnSaveError) without saving
  /// `step`.
  std::string save(std::int64_t step);

  /// Waits until the save in progress has reached the disk or failed. Throws the same errors as
  /// save().
  void wait();

  /// Returns the error of the last save that finished; nullopt if it succeeded.
  const std::optional<Error>& last_error() const { return last_error_; }

  /// Returns the path of the newest complete version, if any. Throws kUnimplemented under the same
  /// conditions as restore_latest().
  std::optional<std::string> latest() const;

  /// Restores the newest version after verifying the checksums of all its bytes. If it is damaged,
  /// logs an error and restores the version before it; with RestoreOptions::strict, throws
  /// kDataLoss instead. Returns nullopt if no version was ever finished. Throws kDataLoss if all
  /// versions are damaged, and kUnimplemented if one has a different format. Collective if
  /// CheckpointOptions::from_writer is set.
  std::optional<CheckpointInfo> restore_latest(RestoreOptions options = {});

  /// Deletes all versions, the oldest first, if this process writes. Versions that cannot be read
  /// are kept. Waits for the save in progress.
  void delete_all();

  /// Returns the paths of all complete versions, newest last. Logs a warning once for versions in a
  /// different format.
  std::vector<std::string> checkpoints() const;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  void start(std::int64_t step);
  /// Returns the connection through which workers save their parts; its exchange function is empty
  /// if one process saves everything.
  internal::CheckpointWorker connect() const;
  std::optional<internal::CheckpointFile> read_newest_whole(
      bool strict, const std::function<internal::CheckpointFile(const std::string& path)>& read);
  void note(const Error& error);

  Checkpoint checkpoint_;
  std::string directory_;
  CheckpointManagerOptions options_;
  std::set<std::string> damaged_;  // damaged versions that restore_latest() skipped
  std::optional<Error> last_error_;
  std::unique_ptr<internal::BackgroundSave> under_way_;
};

}  // namespace tutti
