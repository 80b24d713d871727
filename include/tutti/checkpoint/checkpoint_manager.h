// Folder of the checkpoints of one run: each is committed as a whole, and old ones are deleted.
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
  /// True: save() returns as soon as it has the values, and a thread writes them. Variables share
  /// them with it until the next step that changes them.
  bool asynchronous = false;
  OnSaveError on_error = OnSaveError::kThrow;
  /// For variables that are sharded over workers (FullyShardedStrategy). true: all workers write,
  /// and restore, their own parts concurrently, in a folder that they share; kFailedPrecondition
  /// naming a worker that sees another one. false: worker 0 gathers, writes and reads everything.
  /// Default: true if all workers see the folder (checked by each save), else false with a warning.
  /// Must be equal on all workers.
  std::optional<bool> sharded = std::nullopt;
};

/// Keeps versions <directory>/step_<step>, each a folder with safetensors files, state.json and
/// model.safetensors.index.json. The index has a checksum of every file and is written last, which
/// commits the version. A crash, a power cut or a full disk at any moment leaves the earlier
/// versions, or one more (docs/checkpoints.md). Single files of early versions of tutti can be
/// read. Requires: one writing process. Not thread-safe. Like tf.train.CheckpointManager.
class CheckpointManager {
 public:
  /// Throws kInvalidArgument for a negative max_to_keep. The folder is made by the first save().
  CheckpointManager(Checkpoint checkpoint, std::string directory,
                    CheckpointManagerOptions options = {});
  /// Waits for the save in progress and logs its error.
  ~CheckpointManager();
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;

  /// Saves, then deletes the oldest. Returns the version's path. Requires: step >= 0. Replaces a
  /// version of that step. Throws (OnSaveError) kResourceExhausted for a full disk,
  /// kFailedPrecondition while another process saves into this folder, else kUnavailable. If
  /// asynchronous, waits for the previous save and throws its error (then this step is not saved).
  std::string save(std::int64_t step);

  /// Waits until the save in progress is on the disk or has failed. Throws as save() does.
  void wait();

  /// Returns the error of the last save that ended; nullopt if it succeeded.
  const std::optional<Error>& last_error() const { return last_error_; }

  /// Returns the newest whole version's path, if any. Throws kUnimplemented as restore_latest().
  std::optional<std::string> latest() const;

  /// Restores the newest version after comparing every byte with its checksum. A damaged one is
  /// logged as an error and the one before is restored; RestoreOptions::strict throws kDataLoss
  /// instead. Returns nullopt if no version was ever finished. Throws kDataLoss if none is whole,
  /// kUnimplemented for another format. Collective if CheckpointOptions::from_writer is set.
  std::optional<CheckpointInfo> restore_latest(RestoreOptions options = {});

  /// Deletes all versions, the oldest first, if this process is the writing one. Versions that
  /// cannot be read stay. Waits for the save in progress.
  void delete_all();

  /// Returns the paths of all whole versions, the newest last; logs another format once.
  std::vector<std::string> checkpoints() const;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  void start(std::int64_t step);
  /// Returns the connection to save parts; without an exchange one process saves all.
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
