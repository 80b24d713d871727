// The folder of a run: its versions; saving and reading one, alone or with other workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/version.h"
#include "tutti/checkpoint/checkpoint_versions.h"

namespace tutti::internal {

/// A version with its index.
struct FoundVersion {
  std::string name;  // in the folder of the run
  CheckpointVersion shown;
  std::optional<VersionIndex> index;  // of a folder whose index can be read
  std::optional<Error> refusal;       // the kUnimplemented error of a version in another format
  std::int64_t age = 0;               // larger is newer: the sequence, where it is known
};

/// "step_12".
std::string version_name(std::int64_t step);

/// Returns all versions, the newest last, by their indexes and the sizes of their files. Files and
/// folders with other names are not versions.
std::vector<FoundVersion> find_versions(const Folder& run);

struct SaveSettings {
  int max_to_keep = 0;            // 0: all
  std::set<std::string> damaged;  // names of damaged versions, which do not count as kept
};

/// Deletes every version that can be read, the oldest first, and the folder if nothing is left.
void delete_versions(const std::string& directory);

// Several workers save and read together, each its own parts, on a disk that all share.

/// This worker among those that save together. An error of one of them is thrown by all, naming it.
struct WorkerOfMany {
  int number = 0;  // 0 writes the index
  ExchangeTexts exchange;
};

/// Returns true if all workers see the folder that worker 0 sees. Collective: every worker must
/// call it.
bool is_shared(const std::string& directory, const WorkerOfMany& self);

/// Writes a version, then deletes older ones. Without an exchange this process writes all of it,
/// else each worker writes a file with its parts, and worker 0, which numbers the version, commits
/// it when all files are on the disk. Nothing was committed if a worker fails or is lost before
/// that. Throws errors of Folder, then nothing that was there has changed; kFailedPrecondition
/// naming a worker that sees another folder. Collective: every worker must call it.
void save_version(const std::string& directory, const CheckpointFile& file,
                  const SaveSettings& settings, const WorkerOfMany& workers = {});

/// How a worker reads, and where.
struct ReadingInParts {
  WantedParts wanted;
  /// This worker's path of what worker 0 calls `name`.
  std::function<std::string(const std::string& name)> own_path;
  /// Where a worker sees another folder: kFailedPrecondition; otherwise a warning, and all workers
  /// get what worker 0 reads.
  bool must_be_shared = false;
};
using ReadPath = std::function<CheckpointFile(const std::string& path)>;

/// Returns what `find` chooses in worker 0, whose `read` gives what this worker wants of a path
/// while the other workers read theirs; the error of one of them is that of the read, naming it.
/// Each worker gets its own parts, nothing, or the error that `find` threw in worker 0. Collective:
/// every worker must call it.
std::optional<CheckpointFile> read_in_parts(
    const std::function<std::optional<CheckpointFile>(const ReadPath& read)>& find,
    const ReadingInParts& reading, const WorkerOfMany& self, const CheckpointOptions& options);

}  // namespace tutti::internal
