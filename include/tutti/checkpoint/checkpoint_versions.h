// What is in the folder of a run, and whether it is whole: for people and tools.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti {

/// Whether a version can be restored.
enum class VersionState {
  kWhole,       // by its index and the sizes of its files; verify_checkpoint() reads every byte
  kUnfinished,  // saving it was interrupted
  kDamaged,
};

/// "whole" and so on.
std::string_view to_string(VersionState state);

/// A version of a CheckpointManager.
struct CheckpointVersion {
  std::string path;
  std::int64_t step = 0;
  std::int64_t sequence = 0;  // the how manieth save; 0: a single file of an earlier format
  VersionState state = VersionState::kWhole;
  std::string problem;  // of a damaged one
  std::uint64_t num_bytes = 0;
  std::size_t num_tensors = 0;
};

/// The versions in the folder of a CheckpointManager, the newest last. Throws kNotFound.
std::vector<CheckpointVersion> list_checkpoints(const std::string& directory);

/// Reads every byte of a version or of a single file. What is wrong, one line each; empty: it is
/// whole. Throws kNotFound when there is nothing, kUnimplemented for a later format.
std::vector<std::string> verify_checkpoint(const std::string& path);

/// Step, state, files and tensors of a version (without values), or of a single file. Throws
/// kDataLoss, kNotFound, kUnimplemented.
Json describe_checkpoint(const std::string& path);

}  // namespace tutti
