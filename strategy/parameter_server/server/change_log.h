// The changes of a server since its cuts, in files: what a process that was killed had confirmed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/folder.h"
#include "strategy/parameter_server/protocol/operation.h"
#include "strategy/parameter_server/protocol/record_file.h"

namespace tutti::internal {

/// Beside a server's snapshots, files `ps_0_of_2.log_<cut>_<part>`: what came after the snapshot of
/// this cut was taken, one part per process, in the order of their names. Each has the job as its
/// head, and a record (record_file.h) per batch; a missing one leaves a gap in the numbers of its
/// stream. One that was being written when the process died is left out: nobody was told of it.
/// What was written outlives the process at once, and a power cut `sync_within` later. Threads:
/// append() any; the others one.
class ChangeLog {
 public:
  /// Makes the folder if it is missing.
  ChangeLog(const std::string& folder, std::string job_id, int server, int num_servers,
            Duration sync_within = RecordLogOptions().sync_within);

  /// A new file for what comes after the snapshot of this cut; it is written from switch_over() on.
  /// Before the first of these nothing is written. Where there are files of a later cut, one that
  /// was begun and never taken, it goes on behind the last of them: files are read in their order.
  void prepare(std::uint64_t cut);
  void switch_over() { log_.go_on_with(std::move(next_)); }
  /// A batch that was checked, before it is applied. Batches that meet at a shard, or are of one
  /// stream, come in the order in which they are applied: their locks are held. Throws, and so does
  /// each later call, what the disk said; a later switch_over() ends that.
  void append(const OperationBatch& batch) { log_.append(encode(batch)); }
  /// Deletes what came before this cut.
  void forget_before(std::uint64_t cut) const;

  /// Gives the batches since this cut, in order; returns how many. Throws kFailedPrecondition when
  /// there is no file of this cut; kDataLoss naming path, offset, what was expected and found.
  std::uint64_t replay(std::uint64_t cut, const std::function<void(OperationBatch)>& take) const;

 private:
  struct Part {
    std::uint64_t cut = 0;
    std::uint64_t number = 0;
    auto operator<=>(const Part&) const = default;
  };
  std::string name_of(const Part& part) const;
  std::vector<Part> parts() const;
  std::uint64_t replay_part(const Part& part,
                            const std::function<void(OperationBatch)>& take) const;

  const Folder folder_;
  const std::string begin_;  // of the names of its files
  const std::string job_id_;
  std::shared_ptr<RecordLog::File> next_;  // prepared
  RecordLog log_;
};

}  // namespace tutti::internal
