// Counters of a parameter server, for reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Counters of one server since its start. See ParameterServerStrategy::server_statistics().
struct ServerStatistics {
  std::uint64_t num_shards = 0;
  std::uint64_t num_batches = 0;         // accepted messages
  std::uint64_t num_refused = 0;         // refused messages
  std::uint64_t num_changes = 0;         // applied, or held for a synchronous step
  std::uint64_t num_applied_before = 0;  // repeated changes, which were not applied again
  std::uint64_t num_reads = 0;
  std::uint64_t num_reads_unchanged =
      0;                                // answered without a value: the reader had the current one
  std::uint64_t num_sync_steps = 0;     // over all shards
  std::uint64_t num_stale_dropped = 0;  // gradients for a step that was complete
  std::uint64_t num_rank_duplicates = 0;  // second gradients of a worker for a step

  using Histogram = std::map<std::uint64_t, std::uint64_t>;
  /// Number of gradients by staleness, the number of changes of the shard since the value that they
  /// were computed from.
  Histogram staleness = {};
  /// Number of shards, by worker, where a read waits for the next step and the worker's gradient
  /// for it is missing (UpdateMode::kSyncReplicas).
  std::map<int, std::uint64_t> awaited = {};

  bool operator==(const ServerStatistics&) const = default;
  /// Adds all counters.
  ServerStatistics& operator+=(const ServerStatistics& other);

  /// Returns the counters as int64 [n], for sending.
  Tensor to_tensor() const;
  /// Throws kDataLoss for a tensor that to_tensor() did not make.
  static ServerStatistics from_tensor(const Tensor& tensor);

  /// Greatest staleness that is counted; greater ones count as this.
  static constexpr std::uint64_t kGreatestDifference = 1000;
};

/// Returns "0: 812, 1: 44, 3: 2", or "none" if empty.
std::string to_string(const ServerStatistics::Histogram& histogram);

}  // namespace tutti
