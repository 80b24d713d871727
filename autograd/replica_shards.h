// Which replica owns which elements of a variable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Elements [first, first + count) of a variable, in row-major order.
struct Shard {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Base of a VariableStorage of which each replica owns a shard, and whose read() gathers them.
class ReplicaShards {
 public:
  virtual ~ReplicaShards() = default;
  /// Shard of replica `replica` of this process. Disjoint, together the whole; may be empty.
  Shard shard(int replica) const { return ranges_[static_cast<std::size_t>(replica)]; }
  /// Elements that the replicas of each worker own together, in the order of workers. Empty for one
  /// process.
  std::span<const std::size_t> counts_of_workers() const { return counts_of_workers_; }
  /// Returns true if a replica needs the sum of gradients of its shard alone.
  bool sums_shards() const { return sums_shards_; }
  /// Returns true if a tape releases the value after a read, and reads again when it walks back.
  bool is_read_again() const { return is_read_again_; }
  /// Returns another number after each write. Thread-safe.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

 protected:
  /// The storage owns what the spans and the reference point at.
  ReplicaShards(std::span<const Shard> ranges, std::span<const std::size_t> counts_of_workers,
                const std::atomic<std::uint64_t>& version, bool sums_shards, bool is_read_again)
      : ranges_(ranges),
        counts_of_workers_(counts_of_workers),
        version_(version),
        sums_shards_(sums_shards),
        is_read_again_(is_read_again) {}

 private:
  const std::span<const Shard> ranges_;
  const std::span<const std::size_t> counts_of_workers_;
  const std::atomic<std::uint64_t>& version_;
  const bool sums_shards_, is_read_again_;
};

}  // namespace tutti::internal
