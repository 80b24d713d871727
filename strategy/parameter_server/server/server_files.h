// The files of one server: its last snapshots, and the log of what came since.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/strategy/parameter_server/server/change_log.h"
#include "tutti/strategy/parameter_server/server/snapshot_file.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::internal {

/// From the first save() or load() on, what a store confirms is in the files. Used by one thread at
/// a time.
class ServerFiles {
 public:
  /// Makes the folder if it is missing. Throws as SnapshotFolder.
  ServerFiles(const std::string& folder, const std::string& job_id, int server, int num_servers);

  /// A snapshot, with which a new log begins; deletes what is older than cut `keep`. Throws as
  /// SnapshotFolder::save(), and then what was there is there.
  void save(VariableStore& store, std::uint64_t cut, std::uint64_t term, std::uint64_t keep);
  /// `fresh`, which has no shards, gets all that was confirmed since this cut, refuses what is
  /// older than the term, and is logged from now on. Throws as SnapshotFolder::load() and
  /// ChangeLog::replay(), and kFailedPrecondition naming a variable of `present` that the snapshot
  /// has not, or has otherwise.
  void load(VariableStore& fresh, const VariableStore& present, std::uint64_t cut,
            std::uint64_t term);

 private:
  void replay(VariableStore& store, std::uint64_t cut) const;

  const SnapshotFolder snapshots_;
  const std::shared_ptr<ChangeLog> log_;
};

}  // namespace tutti::internal
