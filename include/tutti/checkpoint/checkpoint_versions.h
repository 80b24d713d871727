// Functions that list and check the versions in the folder of a CheckpointManager.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti {

/// State of a version. Only kWhole versions can be restored.
enum class VersionState {
  kWhole,       // index and file sizes match; verify_checkpoint() checks every byte
  kUnfinished,  // the save was interrupted
  kDamaged,     // damaged, or in a format that this program cannot read
};

/// Returns "whole", "unfinished" or "damaged".
std::string_view to_string(VersionState state);

/// A version of a CheckpointManager.
struct CheckpointVersion {
  std::string path;
  std::int64_t step = 0;
  std::int64_t sequence = 0;  // number of the save, from 1; 0 for a file in the earlier format
  VersionState state = VersionState::kWhole;
  std::string problem;  // reason why the version is not kWhole, or empty
  std::uint64_t num_bytes = 0;
  std::size_t num_tensors = 0;
};

/// Returns the versions in a CheckpointManager's folder, newest last. Throws kNotFound if there is
/// no such folder.
std::vector<CheckpointVersion> list_checkpoints(const std::string& directory);

/// Reads every byte of a version or of a single file. Returns one line per problem; empty if the
/// data is intact. Throws kNotFound if the path does not exist, and kUnimplemented for another
/// format.
std::vector<std::string> verify_checkpoint(const std::string& path);

/// Returns the step, state, files and tensors (without values) of a version or a single file.
/// Throws kDataLoss if it is damaged, and the errors of verify_checkpoint().
Json describe_checkpoint(const std::string& path);

}  // namespace tutti
