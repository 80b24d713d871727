// Holds reads of workers that are too far ahead of the others, without a thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/server/clock_table.h"
#include "tutti/strategy/parameter_server/server/store_statistics.h"
#include "tutti/strategy/parameter_server/server/stored_shard.h"

namespace tutti::internal {

/// A read and its shard.
struct HeldRead {
  std::uint64_t client = 0;
  std::shared_ptr<StoredShard> shard;
  WaitingRead read;
};

/// Whoever calls a function that returns reads goes on with them, holding no lock. Threads: any.
class ClockGate {
 public:
  /// Whether the client may read now; otherwise takes the read.
  bool passes(HeldRead& read);

  /// As ClockTable. `released`: reads that need not wait any more are added to it.
  OperationAnswer tell(std::uint64_t client, const TellClock& tell,
                       std::vector<HeldRead>& released);
  /// The client is gone, and nobody waits for it any more.
  std::vector<HeldRead> leave(std::uint64_t client);
  /// See ClockTable.
  std::set<int> ended() const;
  /// Nobody wants the answers of this owner's reads any more.
  void drop_reads_of(std::uint64_t owner);
  std::vector<HeldRead> take_all();

  /// Sets what statistics tell of clocks.
  void report(StoreStatistics& statistics) const;

 private:
  void note_lead(std::uint64_t client) TUTTI_REQUIRES(mutex_);
  void release(std::vector<HeldRead>& released) TUTTI_REQUIRES(mutex_);

  mutable Mutex mutex_;
  ClockTable table_ TUTTI_GUARDED_BY(mutex_);
  StoreStatistics::Histogram leads_ TUTTI_GUARDED_BY(mutex_);
  std::vector<HeldRead> held_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
