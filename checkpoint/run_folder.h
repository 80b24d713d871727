// Functions that find, save and read the checkpoint versions in a run's folder.
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

/// Version that was found in a run's folder.
struct FoundVersion {
  std::string name;  // name of the file or folder in the run's folder
  CheckpointVersion shown;
  std::optional<VersionIndex> index;  // set for a folder with a readable index
  std::optional<Error> refusal;       // the kUnimplemented error for a version in another format
  std::int64_t age = 0;               // larger means newer; the sequence number, if known
};

/// Returns the name of a version: "step_12" for step 12.
std::string version_name(std::int64_t step);

/// Returns all versions, including incomplete ones, from oldest to newest. Derives their states
/// from indexes and file sizes. Ignores files and folders whose names are not version names.
std::vector<FoundVersion> find_versions(const Folder& run);

struct SaveSettings {
  int max_to_keep = 0;            // number of versions to keep; 0 keeps all
  std::set<std::string> damaged;  // names of damaged versions, which max_to_keep does not count
};

/// Deletes every version that has a readable index, the oldest first. Then deletes the folder if it
/// is empty.
void delete_versions(const std::string& directory);

// Functions for workers that save and read checkpoints together on a shared disk, each worker
// handling its own parts.

/// One of the workers that save or read a checkpoint together. If a worker fails, all workers throw
/// its error, which names that worker.
struct CheckpointWorker {
  int number = 0;  // this worker's number; worker 0 writes the index
  ExchangeTexts exchange;
};

/// Returns true if all workers see the same folder as worker 0. Collective: every worker must call
/// it.
bool is_shared(const std::string& directory, const CheckpointWorker& self);

/// Writes a version, then deletes older ones. Without an exchange, this process writes the whole
/// version. Otherwise, each worker writes a file with its parts; worker 0 numbers the version and
/// commits it once all files are on disk. If a worker fails or is lost before the commit, nothing
/// is committed. Throws Folder's errors, which leave earlier versions unchanged, and
/// kFailedPrecondition, naming a worker that sees a different folder. Collective: every worker must
/// call it.
void save_version(const std::string& directory, const CheckpointFile& file,
                  const SaveSettings& settings, const CheckpointWorker& workers = {});

/// Parts that a worker reads, and the path from which it reads them.
struct ShardedRead {
  WantedParts wanted;
  /// Returns this worker's path to the version that is named `name` in worker 0's folder.
  std::function<std::string(const std::string& name)> own_path;
  /// If true, throws kFailedPrecondition unless all workers see the same folder. If false, logs a
  /// warning instead, and all workers get the values that worker 0 reads.
  bool must_be_shared = false;
};
using ReadPath = std::function<CheckpointFile(const std::string& path)>;

/// Calls `find` on worker 0 and returns its result. Within `find`, read(path) returns worker 0's
/// parts of that version while the other workers read theirs; if any worker fails, read() throws
/// that worker's error, which names the worker. Each worker gets its own parts, nullopt, or the
/// error that `find` threw on worker 0. Collective: every worker must call it.
std::optional<CheckpointFile> read_sharded(
    const std::function<std::optional<CheckpointFile>(const ReadPath& read)>& find,
    const ShardedRead& reading, const CheckpointWorker& self, const CheckpointOptions& options);

}  // namespace tutti::internal
