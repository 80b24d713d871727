// Partitioners, which decide into how many shards a variable is divided.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// Returns the number of shards along each dimension for a variable of this shape; only the first
/// may be more than 1. Called once per variable; scalars and variables without rows always have one
/// shard. If empty, no variable is divided.
using Partitioner = std::function<std::vector<std::int64_t>(const Shape& shape, DType dtype)>;

/// Partitioner into `num_shards` shards, but at most one per row.
class FixedShardsPartitioner {
 public:
  /// Throws kInvalidArgument if num_shards < 1.
  explicit FixedShardsPartitioner(std::int64_t num_shards);
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t num_shards_;
};

/// Partitioner into shards of about `min_shard_bytes`, whose number is rounded up as in tf (10
/// bytes by 4 are 3 shards); at most `max_shards`, and one per row. The default never divides.
class MinSizePartitioner {
 public:
  explicit MinSizePartitioner(std::int64_t min_shard_bytes = 256 << 10,
                              std::int64_t max_shards = 1);
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t min_shard_bytes_, max_shards_;
};

/// Partitioner into as few shards as keep each within `max_shard_bytes` (a row is not divided), but
/// at most `max_shards`.
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
