// Contents of a run's folder and their condition, for people and tools.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti {

/// Condition of a version; only a whole one can be restored.
enum class VersionState {
  kWhole,       // by its index and the sizes of its files; verify_checkpoint() reads every byte
  kUnfinished,  // saving it was interrupted
  kDamaged,
};

/// Returns "whole" and so on.
std::string_view to_string(VersionState state);

/// A version of a CheckpointManager.
struct CheckpointVersion {
  std::string path;
  std::int64_t step = 0;
  std::int64_t sequence = 0;  // number of the save, from 1; 0: a single file of an earlier format
  VersionState state = VersionState::kWhole;
  std::string problem;  // description of the damage, if damaged
  std::uint64_t num_bytes = 0;
  std::size_t num_tensors = 0;
};

/// Returns the versions in the folder of a CheckpointManager, the newest last. Throws kNotFound.
std::vector<CheckpointVersion> list_checkpoints(const std::string& directory);

/// Reads every byte of a version or of a single file. Returns one line per problem; empty if it is
/// whole. Throws kNotFound if there is nothing, kUnimplemented for a later format.
std::vector<std::string> verify_checkpoint(const std::string& path);

/// Returns step, state, files and tensors (without values) of a version or a single file. Throws
/// kDataLoss, kNotFound, kUnimplemented.
Json describe_checkpoint(const std::string& path);

}  // namespace tutti
