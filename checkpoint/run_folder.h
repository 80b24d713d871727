// The folder of a run: its versions, from the oldest to the newest, and saving one more.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/checkpoint/version.h"

namespace tutti::internal {

/// A version and what was read of it.
struct FoundVersion {
  std::string name;  // in the folder of the run
  CheckpointVersion shown;
  std::optional<Manifest> manifest;  // of a folder whose manifest can be read
  std::int64_t age = 0;              // larger is newer: the sequence, where it is known
};

/// "step_12".
std::string version_name(std::int64_t step);

/// All versions, the newest last; files and folders with other names are none. Manifests and sizes
/// are looked at, elements are not.
std::vector<FoundVersion> find_versions(const Folder& run);

struct SaveSettings {
  int max_to_keep = 0;            // 0: all
  std::set<std::string> damaged;  // names that are known to be damaged: they do not count as kept
};

/// Writes a version; then deletes older ones. Throws errors of Folder; then nothing that was there
/// has changed.
void save_version(const std::string& directory, const CheckpointFile& file,
                  const SaveSettings& settings);

/// Deletes every version that can be read, the oldest first, and the folder when nothing is left.
void delete_versions(const std::string& directory);

}  // namespace tutti::internal
