// What a variable is besides whose elements lie in shards, one per replica.
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

/// A VariableStorage may be this, too: each replica owns a shard, and read() gathers them.
class ReplicaShards {
 public:
  virtual ~ReplicaShards() = default;
  /// Of replica `replica` of this process. Disjoint, together the whole; may be empty.
  virtual Shard shard(int replica) const = 0;
  /// How many elements the replicas of each worker own together: those of worker 0 come first. Of
  /// one process: nothing.
  virtual std::span<const std::size_t> counts_of_workers() const = 0;
  /// Whether a replica wants the sum of gradients of its shard alone.
  virtual bool sums_shards() const = 0;
  /// Whether a tape lets go of what was read, and reads again when it walks back.
  virtual bool is_read_again() const = 0;
  /// Another number after each write. Any thread.
  virtual std::uint64_t version() const = 0;
};

}  // namespace tutti::internal
