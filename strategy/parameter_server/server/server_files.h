// The files of one server: its last snapshots, each whole or not there, and the log of what came
// since.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "strategy/parameter_server/protocol/record_file.h"
#include "strategy/parameter_server/server/change_log.h"
#include "strategy/parameter_server/server/server_store.h"

namespace tutti::internal {

/// Whose state a file has, and of when.
struct SnapshotLabel {
  std::string job_id = {};  // at most 64 characters
  int server = 0;
  int num_servers = 1;
  std::uint64_t cut = 0;   // all servers have saved under this number, or none counts
  std::uint64_t term = 0;  // under which it was saved
  bool operator==(const SnapshotLabel&) const = default;
};
struct SavedSnapshot {
  SnapshotLabel label = {};
  StoreSnapshot snapshot = {};
};

/// Of its bytes in a file: not less, but for what many held gradients take.
std::uint64_t about_size(const StoreSnapshot& snapshot);
/// The bytes of a file, in order; tensors are not copied as a whole.
void write_snapshot(const SavedSnapshot& saved, const RecordWriter::Sink& sink);
/// Throws kDataLoss naming path, offset, what was expected and what was found, unless every byte is
/// as it was written.
SavedSnapshot read_snapshot(const std::string& path, std::uint64_t size,
                            RecordReader::Source source);
/// Magic and format.
FileKind snapshot_kind();

// Its parts as messages. Throw kDataLoss for what these functions do not write.
std::vector<std::byte> encode_for_file(const SnapshotLabel& label);
SnapshotLabel decode_label(std::span<const std::byte> bytes);
/// A shard is written as the operations that would make it: its creation, and the gradients that
/// it holds.
Packet encode_for_file(const ShardSnapshot& shard);
ShardSnapshot decode_shard(const Packet& packet);

/// The snapshots of one server of one job. Used by one thread at a time.
class SnapshotFolder {
 public:
  /// Makes the folder if it is missing; servers of a job may share one. Throws kFailedPrecondition
  /// naming the file if a snapshot of this server is another job's.
  SnapshotFolder(const std::string& path, std::string job_id, int server, int num_servers);

  /// On the disk when it returns; a process that dies before leaves nothing of it. Deletes all
  /// others but that of cut `keep`. Of a cut that was saved already it saves nothing. Throws as
  /// Folder; then what was there is there.
  void save(std::uint64_t cut, std::uint64_t term, const StoreSnapshot& snapshot,
            std::uint64_t keep) const;
  /// Throws kNotFound naming the cuts that are there; kDataLoss.
  SavedSnapshot load(std::uint64_t cut) const;
  /// Of this server's files, ascending.
  std::vector<std::uint64_t> cuts() const;

 private:
  std::string name_of(std::uint64_t cut) const;
  /// Nothing else of the file was compared.
  SnapshotLabel label_of(std::uint64_t cut) const;
  void require_own(const SnapshotLabel& label, std::uint64_t cut) const;

  const std::string job_id_;
  const int server_;
  const int num_servers_;
  const Folder folder_;
};

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
