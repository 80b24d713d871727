// How many steps each worker has ended, and who must wait for whom: without a thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "strategy/parameter_server/server/stored_shard.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/protocol/server_statistics.h"

namespace tutti::internal {

/// The rule of stale-synchronous training (TellClock). A worker is known by the number of its
/// client, so that one that was started again is another one. A value that depends on nothing but
/// the calls.
class ClockTable {
 public:
  /// What TellClock asks for. Throws kInvalidArgument naming both workers for a staleness other
  /// than that of those who are there, kFailedPrecondition for a clock that goes back.
  OperationAnswer tell(std::uint64_t client, const TellClock& tell);
  /// Whether it was there.
  bool leave(std::uint64_t client) { return workers_.erase(client) != 0; }
  /// Numbers of workers that said that they end (kLeave) and have not joined since. One whose
  /// connection broke is not among them: it may be started again.
  const std::set<int>& ended() const { return ended_; }

  /// The clock that all workers must have reached before this client may read; 0: any.
  std::uint64_t wanted_by(std::uint64_t client) const;
  /// By how much the client is ahead of the slowest worker; nothing for one that has not joined, or
  /// that nothing bounds.
  std::optional<std::uint64_t> lead_of(std::uint64_t client) const;
  /// 0 without workers.
  std::uint64_t slowest() const;
  /// By worker; of two with one number the slower one.
  std::map<int, std::uint64_t> clocks() const;

 private:
  struct Worker {
    int number = 0;
    std::uint64_t clock = 0;
    std::uint64_t staleness = TellClock::kUnboundedStaleness;
  };
  Worker& join(std::uint64_t client, const TellClock& tell, std::uint64_t clock);

  std::map<std::uint64_t, Worker> workers_;  // by client
  std::set<int> ended_;
};

/// Counts one more of this difference.
void count_difference(ServerStatistics::Histogram& histogram, std::uint64_t difference);

/// The caller of a function that returns reads resumes them, holding no lock. Threads: any.
class ClockGate {
 public:
  /// Whether the client may read now; otherwise takes the read.
  bool passes(WaitingRead& read);

  /// As ClockTable. `released`: reads that need not wait any more are added to it.
  OperationAnswer tell(std::uint64_t client, const TellClock& tell,
                       std::vector<WaitingRead>& released);
  /// The client is gone, and nobody waits for it any more.
  std::vector<WaitingRead> leave(std::uint64_t client);
  /// See ClockTable.
  std::set<int> ended() const;
  /// Those of this owner that wait; 0: all.
  std::vector<WaitingRead> take_reads_of(std::uint64_t owner);

  /// Sets what statistics tell of clocks.
  void report(ServerStatistics& statistics) const;

 private:
  void note_lead(std::uint64_t client) TUTTI_REQUIRES(mutex_);
  void release(std::vector<WaitingRead>& released) TUTTI_REQUIRES(mutex_);

  mutable Mutex mutex_;
  ClockTable table_ TUTTI_GUARDED_BY(mutex_);
  ServerStatistics::Histogram leads_ TUTTI_GUARDED_BY(mutex_);
  std::vector<WaitingRead> held_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
