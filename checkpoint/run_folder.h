// The folder of a run: its versions, from the oldest to the newest, and saving one more.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/version.h"
#include "tutti/checkpoint/checkpoint_versions.h"

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

/// A version that is being saved.
struct BegunVersion {
  Folder run;  // locked
  Folder folder;
  std::string name;
  std::int64_t sequence = 0;
};

/// Holds off other savers, removes what interrupted ones left, and makes the version's folder.
/// Throws errors of Folder.
BegunVersion begin_version(const std::string& directory, std::int64_t step);
/// When all files of the manifest are on the disk: makes the version, then deletes older ones.
void finish_version(const BegunVersion& begun, const Manifest& manifest,
                    const SaveSettings& settings);
/// Frees the space of a save that failed, unless it was committed after all.
void take_back(const BegunVersion& begun) noexcept;

/// Writes a version; then deletes older ones. Throws errors of Folder; then nothing that was there
/// has changed.
void save_version(const std::string& directory, const CheckpointFile& file,
                  const SaveSettings& settings);

/// An empty file in a folder that tells one folder from another of the same name. Deleted when the
/// object dies, or by the next save.
class FolderMark {
 public:
  /// Makes the folder and the file. Throws errors of Folder.
  explicit FolderMark(const std::string& directory);
  const std::string& name() const { return name_; }
  /// Whether the mark of that name is in the folder as this process sees it.
  static bool is_in(const std::string& directory, const std::string& name);

 private:
  const Folder folder_;
  const std::string name_;
  const FileWriter file_;
};

/// Deletes every version that can be read, the oldest first, and the folder when nothing is left.
void delete_versions(const std::string& directory);

}  // namespace tutti::internal
