// Into how many shards a variable is cut: tf.distribute.experimental.partitioners.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// For a variable of this shape: the number of shards along each dimension, of which only the first
/// may be more than 1. Called once per variable of rank 1 or more; scalars are never cut. Empty:
/// nothing is cut.
using Partitioner = std::function<std::vector<std::int64_t>(const Shape& shape, DType dtype)>;

/// Always `num_shards`, but not more than rows.
class FixedShardsPartitioner {
 public:
  /// Throws kInvalidArgument below 1.
  explicit FixedShardsPartitioner(std::int64_t num_shards);
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t num_shards_;
};

/// As many shards as make each about `min_shard_bytes` large, rounded up as tf does (10 bytes with
/// a minimum of 4 are 3 shards); not more than `max_shards` nor rows. The default never cuts.
class MinSizePartitioner {
 public:
  explicit MinSizePartitioner(std::int64_t min_shard_bytes = 256 << 10,
                              std::int64_t max_shards = 1);
  std::vector<std::int64_t> operator()(const Shape& shape, DType dtype) const;

 private:
  std::int64_t min_shard_bytes_, max_shards_;
};

/// As few shards as keep each within `max_shard_bytes` (a row is not cut); at most `max_shards`.
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
