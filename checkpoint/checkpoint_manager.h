// A folder of checkpoints of one run: numbered by step, the newest known, old ones deleted.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"

namespace tutti {

struct CheckpointManagerOptions {
  /// Checkpoints that are kept, the newest ones; 0: all.
  int max_to_keep = 5;
};

/// Keeps <directory>/step_<step>.safetensors, and a text file <directory>/latest with the name of
/// the one saved last. A crash at any moment leaves a folder whose `latest` names a whole
/// checkpoint. One process, one thread. tf.train.CheckpointManager.
class CheckpointManager {
 public:
  /// Throws kInvalidArgument for a negative max_to_keep. The folder is made by the first save().
  CheckpointManager(Checkpoint checkpoint, std::string directory,
                    CheckpointManagerOptions options = {});

  /// Saves, then points `latest` at the new file, then deletes the oldest files. Returns the path.
  /// The step must be >= 0.
  std::string save(std::int64_t step);

  /// The path of the checkpoint saved last, by this or an earlier process; nothing when there is
  /// none. Throws kDataLoss when `latest` names a file that is not there.
  std::optional<std::string> latest() const;

  /// Restores latest(); nothing when there is none.
  std::optional<CheckpointInfo> restore_latest(RestoreOptions options = {}) const;

  /// Paths of all checkpoints of the folder, by step.
  std::vector<std::string> checkpoints() const;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  void delete_old(const std::string& newest) const;

  Checkpoint checkpoint_;
  std::string directory_;
  CheckpointManagerOptions options_;
};

}  // namespace tutti
