// What a server has done: numbers for reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

namespace tutti::internal {

struct StoreStatistics {
  std::uint64_t num_shards = 0;
  std::uint64_t num_batches = 0;         // that were not refused
  std::uint64_t num_refused = 0;         // batches
  std::uint64_t num_changes = 0;         // applied, or held for a synchronous step
  std::uint64_t num_applied_before = 0;  // changes that came again
  std::uint64_t num_reads = 0;
  std::uint64_t num_reads_unchanged = 0;  // answered without a value
  std::uint64_t num_sync_steps = 0;       // over all shards
  std::uint64_t num_stale_dropped = 0;    // gradients for a step that was over
  std::uint64_t num_rank_duplicates = 0;  // second gradients of a rank for a step
  /// By how many changes of the shard a gradient came late: how often (asynchronous updates that
  /// say what they were computed from).
  std::map<std::uint64_t, std::uint64_t> staleness = {};
  bool operator==(const StoreStatistics&) const = default;
};

}  // namespace tutti::internal
