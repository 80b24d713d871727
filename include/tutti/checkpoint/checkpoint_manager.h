// A folder of checkpoints of one run: each committed whole, the newest known, old ones deleted.
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
struct WorkerOfMany;
}  // namespace internal

/// What CheckpointManager::save() does when a disk is full, read-only or broken.
enum class OnSaveError {
  kThrow,
  kContinue,  // logs the error; training goes on, and the next save() tries again
};

struct CheckpointManagerOptions {
  /// Checkpoints that are kept, the newest ones; 0: all.
  int max_to_keep = 5;
  /// save() returns as soon as it knows the values; a thread writes them. Variables are shared with
  /// it and copied by the next step that changes them.
  bool asynchronous = false;
  OnSaveError on_error = OnSaveError::kThrow;
  /// Of variables that are cut over workers (FullyShardedStrategy). true: each worker writes, and
  /// restores, the parts that it holds, all at the same time, in a folder that all workers share;
  /// kFailedPrecondition naming a worker that sees another one. false: worker 0 gathers all, writes
  /// and reads it alone. Empty: true where all workers see the folder (each save looks), else false
  /// with a warning. The same on all workers.
  std::optional<bool> sharded = std::nullopt;
};

/// Keeps versions <directory>/step_<step>, each a folder with safetensors files, state.json and
/// model.safetensors.index.json: the index has a checksum of every file, is written last and makes
/// the version. A crash, a power cut or a full disk at any moment leaves the versions that were
/// there, or one more (docs/checkpoints.md). Single files of early versions of tutti are read,
/// too. One writing process, one thread. tf.train.CheckpointManager.
class CheckpointManager {
 public:
  /// Throws kInvalidArgument for a negative max_to_keep. The folder is made by the first save().
  CheckpointManager(Checkpoint checkpoint, std::string directory,
                    CheckpointManagerOptions options = {});
  /// Waits for the save under way; its error is logged.
  ~CheckpointManager();
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;

  /// Saves, then deletes the oldest. Returns the version's path. The step must be >= 0; a version
  /// of that step is replaced. Throws (OnSaveError) kResourceExhausted for a full disk,
  /// kFailedPrecondition while another process saves into this folder, else kUnavailable.
  /// Asynchronous: waits for the save before, throws its error (then this step is not saved).
  std::string save(std::int64_t step);

  /// Until the save under way is on the disk, or failed: throws as save().
  void wait();

  /// Why the last save that ended failed; nothing when it did not.
  const std::optional<Error>& last_error() const { return last_error_; }

  /// Returns the newest whole version's path, if any. Throws kUnimplemented like restore_latest().
  std::optional<std::string> latest() const;

  /// Restores the newest version after comparing every byte with its checksum. A damaged one is
  /// reported (log, error) and the one before is taken; RestoreOptions::strict throws kDataLoss
  /// instead. Nothing if no version was ever finished; kDataLoss if none is whole, kUnimplemented
  /// for one in another format. Collective with CheckpointOptions::from_writer: one reads for all.
  std::optional<CheckpointInfo> restore_latest(RestoreOptions options = {});

  /// Deletes all versions, the oldest first; of several processes the one that writes does. What
  /// cannot be read as a version stays. Waits for the save under way.
  void delete_all();

  /// Paths of all whole versions, the newest last; one in another format is logged once.
  std::vector<std::string> checkpoints() const;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  void start(std::int64_t step);
  /// To save parts; without a way to exchange texts: one process saves all.
  internal::WorkerOfMany connect() const;
  std::optional<internal::CheckpointFile> read_newest_whole(
      bool strict, const std::function<internal::CheckpointFile(const std::string& path)>& read);
  void note(const Error& error);

  Checkpoint checkpoint_;
  std::string directory_;
  CheckpointManagerOptions options_;
  std::set<std::string> damaged_;  // names of versions that restore_latest() went past
  std::optional<Error> last_error_;
  std::unique_ptr<internal::BackgroundSave> under_way_;
};

}  // namespace tutti
