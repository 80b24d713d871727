// What a parameter server has done: numbers for reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Counts of one server since its start. ParameterServerStrategy::server_statistics().
struct ServerStatistics {
  std::uint64_t num_shards = 0;
  std::uint64_t num_batches = 0;         // messages that were not refused
  std::uint64_t num_refused = 0;         // messages
  std::uint64_t num_changes = 0;         // applied, or held for a synchronous step
  std::uint64_t num_applied_before = 0;  // changes that came again, and were not made again
  std::uint64_t num_reads = 0;
  std::uint64_t num_reads_unchanged =
      0;                                // answered without a value: the reader had the present one
  std::uint64_t num_sync_steps = 0;     // over all shards
  std::uint64_t num_stale_dropped = 0;  // gradients for a step that was over
  std::uint64_t num_rank_duplicates = 0;  // second gradients of a worker for a step

  using Histogram = std::map<std::uint64_t, std::uint64_t>;
  /// By how many changes of its shard a gradient came late: how many gradients. 0: what it was
  /// computed from was still the present value.
  Histogram staleness = {};
  /// Workers whose gradient for the next step of a shard is missing while a read waits for that
  /// step: of how many shards (UpdateMode::kSyncReplicas).
  std::map<int, std::uint64_t> awaited = {};

  bool operator==(const ServerStatistics&) const = default;
  /// Adds everything up.
  ServerStatistics& operator+=(const ServerStatistics& other);

  /// As it travels: int64 [n].
  Tensor to_tensor() const;
  /// Throws kDataLoss for a tensor that to_tensor() did not make.
  static ServerStatistics from_tensor(const Tensor& tensor);

  /// Greater differences count as this one.
  static constexpr std::uint64_t kGreatestDifference = 1000;
};

/// "0: 812, 1: 44, 3: 2"; "none" for an empty one.
std::string to_string(const ServerStatistics::Histogram& histogram);

}  // namespace tutti
