// Implements the partitioners of tf.distribute, with the same rounding.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/partitioner.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti {
namespace {

void require_positive(const char* who, const char* what, std::int64_t value) {
  if (value >= 1) return;
  fail(ErrorCode::kInvalidArgument, who, ": ", what, ": expected >= 1, got ", value);
}

/// Returns `num_shards` for the first dimension and 1 for each other dimension.
std::vector<std::int64_t> along_rows(const Shape& shape, std::int64_t num_shards) {
  std::vector<std::int64_t> shards(static_cast<std::size_t>(shape.rank()), 1);
  if (!shards.empty()) shards.front() = num_shards;
  return shards;
}

std::int64_t num_rows(const Shape& shape) { return shape.rank() == 0 ? 1 : shape.dim(0); }

std::int64_t num_bytes(const Shape& shape, DType dtype) {
  return shape.num_elements() * static_cast<std::int64_t>(size_of(dtype));
}

/// Returns value / divisor, rounded up; large divisors cause no overflow.
std::int64_t ceil_divide(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace

FixedShardsPartitioner::FixedShardsPartitioner(std::int64_t num_shards) : num_shards_(num_shards) {
  require_positive("FixedShardsPartitioner", "num_shards", num_shards);
}

std::vector<std::int64_t> FixedShardsPartitioner::operator()(const Shape& shape, DType) const {
  return along_rows(shape, std::max<std::int64_t>(1, std::min(num_shards_, num_rows(shape))));
}

MinSizePartitioner::MinSizePartitioner(std::int64_t min_shard_bytes, std::int64_t max_shards)
    : min_shard_bytes_(min_shard_bytes), max_shards_(max_shards) {
  require_positive("MinSizePartitioner", "min_shard_bytes", min_shard_bytes);
  require_positive("MinSizePartitioner", "max_shards", max_shards);
}

std::vector<std::int64_t> MinSizePartitioner::operator()(const Shape& shape, DType dtype) const {
  const std::int64_t wanted = ceil_divide(num_bytes(shape, dtype), min_shard_bytes_);
  return along_rows(shape,
                    std::max<std::int64_t>(1, std::min({wanted, max_shards_, num_rows(shape)})));
}

MaxSizePartitioner::MaxSizePartitioner(std::int64_t max_shard_bytes,
                                       std::optional<std::int64_t> max_shards)
    : max_shard_bytes_(max_shard_bytes), max_shards_(max_shards) {
  require_positive("MaxSizePartitioner", "max_shard_bytes", max_shard_bytes);
  if (max_shards) require_positive("MaxSizePartitioner", "max_shards", *max_shards);
}

std::vector<std::int64_t> MaxSizePartitioner::operator()(const Shape& shape, DType dtype) const {
  const std::int64_t rows = num_rows(shape);
  if (rows == 0) return along_rows(shape, 1);
  const std::int64_t bytes_per_row = std::max<std::int64_t>(1, num_bytes(shape, dtype) / rows);
  const std::int64_t rows_per_shard = std::max<std::int64_t>(1, max_shard_bytes_ / bytes_per_row);
  const std::int64_t wanted = ceil_divide(rows, rows_per_shard);
  return along_rows(shape, std::min(wanted, max_shards_.value_or(wanted)));
}

}  // namespace tutti
