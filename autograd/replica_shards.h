// ReplicaShards: the elements of a variable that each replica owns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Base class for a VariableStorage in which each replica owns a shard; read() gathers the shards.
class ReplicaShards {
 public:
  virtual ~ReplicaShards() = default;
  /// Returns the shard of local replica `replica`. Shards are disjoint, cover the variable, and may
  /// be empty.
  Shard shard(int replica) const { return ranges_[static_cast<std::size_t>(replica)]; }
  /// Returns, for each worker, the total number of elements that its replicas own; empty if there
  /// is only one process.
  std::span<const std::size_t> counts_of_workers() const { return counts_of_workers_; }
  /// Returns true if each replica needs the summed gradient only for its own shard.
  bool sums_shards() const { return sums_shards_; }

 protected:
  /// The spans refer to memory that the derived storage owns.
  ReplicaShards(std::span<const Shard> ranges, std::span<const std::size_t> counts_of_workers,
                bool sums_shards)
      : ranges_(ranges), counts_of_workers_(counts_of_workers), sums_shards_(sums_shards) {}

 private:
  const std::span<const Shard> ranges_;
  const std::span<const std::size_t> counts_of_workers_;
  const bool sums_shards_;
};

}  // namespace tutti::internal
