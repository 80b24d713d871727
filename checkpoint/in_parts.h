// Versions that several workers save and read together, each its own parts, on a disk that all
// share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/run_folder.h"
#include "checkpoint/version.h"
#include "tutti/checkpoint/checkpoint.h"

namespace tutti::internal {

/// This worker among those that save together. An error of one of them is thrown by all, naming it.
struct WorkerOfMany {
  int number = 0;  // 0 has the manifest
  ExchangeTexts exchange;
};

/// Whether all workers see the folder that worker 0 sees. A call of all. One that cannot be made
/// is none.
bool is_shared(const std::string& directory, const WorkerOfMany& self);

/// save_version(), called by all workers with what each has: worker 0 numbers the version, each
/// writes a file, and when all of them are on the disk worker 0 commits. Nothing was committed when
/// one of them fails or is lost before that. Throws kFailedPrecondition naming the worker whose
/// folder is another one.
void save_version_in_parts(const std::string& directory, const CheckpointFile& file,
                           const SaveSettings& settings, const WorkerOfMany& self);

/// How a worker reads, and where.
struct ReadingInParts {
  WantedParts wanted;
  /// This worker's path of what worker 0 calls `name`.
  std::function<std::string(const std::string& name)> own_path;
  /// Where a worker sees another folder: kFailedPrecondition; otherwise a warning, and all take
  /// what worker 0 reads.
  bool must_be_shared = false;
};
using ReadPath = std::function<CheckpointFile(const std::string& path)>;

/// What `find` chooses in worker 0, whose `read` gives what this worker wants of a path while the
/// others read theirs; the error of one is that of the read, naming it. A call of all: each gets
/// its own parts, nothing, or the error that `find` threw there.
std::optional<CheckpointFile> read_in_parts(
    const std::function<std::optional<CheckpointFile>(const ReadPath& read)>& find,
    const ReadingInParts& reading, const WorkerOfMany& self, const CheckpointOptions& options);

}  // namespace tutti::internal
