// Partitioners, which choose the number of shards of a variable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// Function that returns the number of shards of a variable along each dimension; only the first
/// number may be above 1. Called once per variable; scalars and variables without rows always have
/// one shard. If the function is empty, no variable is divided.
using Partitioner = std::function<std::vector<std::int64_t>(const Shape& shape, DType dtype)>;

/// Partitioner that creates `num_shards` shards, but at most one per row.
class FixedShardsPartitioner {
 public:
  /// Throws kInvalidArgument if num_shards < 1.
  explicit FixedShardsPartitioner(std::int64_t num_shards);
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t num_shards_;
};

/// Partitioner that creates shards of about `min_shard_bytes`, but at most `max_shards`, and at
/// most one per row. The number of shards is rounded up as in tf: 10 bytes in shards of 4 bytes are
/// 3 shards. With the default max_shards, no variable is divided.
class MinSizePartitioner {
 public:
  explicit MinSizePartitioner(std::int64_t min_shard_bytes = 256 << 10,
                              std::int64_t max_shards = 1);
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t min_shard_bytes_, max_shards_;
};

/// Partitioner that creates as few shards as possible, each of at most `max_shard_bytes`, but never
/// more than `max_shards` shards. Rows are not split.
class MaxSizePartitioner {
 public:
  explicit MaxSizePartitioner(std::int64_t max_shard_bytes,
                              std::optional<std::int64_t> max_shards = {});
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t max_shard_bytes_;
  std::optional<std::int64_t> max_shards_;
};

}  // namespace tutti
