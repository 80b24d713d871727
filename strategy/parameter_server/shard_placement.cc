// Divides variables into ranges of contiguous rows, and chooses servers: round-robin or by bytes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/shard_placement.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti::internal {

std::vector<RowRange> cut_rows(std::int64_t num_rows, std::int64_t num_shards) {
  TUTTI_CHECK(num_shards >= 1, "cut_rows: ", num_shards, " shards");
  std::vector<RowRange> ranges;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < num_shards; ++i) {
    const std::int64_t count = num_rows / num_shards + (i < num_rows % num_shards ? 1 : 0);
    ranges.push_back({first, count});
    first += count;
  }
  return ranges;
}

std::int64_t num_shards_of(const Partitioner& partitioner, const std::string& variable,
                           const Shape& shape, DType dtype) {
  if (!partitioner || shape.rank() == 0 || shape.dim(0) == 0) return 1;
  const std::vector<std::int64_t> shards = partitioner(shape, dtype);
  const auto refuse = [&](const char* expected) {
    fail(ErrorCode::kInvalidArgument, "variable_partitioner: for variable '", variable, "' ", shape,
         ": expected ", expected, ", got [", join(shards), "]");
  };
  if (static_cast<int>(shards.size()) != shape.rank()) refuse("one number per dimension");
  if (std::ranges::any_of(shards, [](std::int64_t n) { return n < 1; })) refuse("numbers above 0");
  if (std::any_of(shards.begin() + 1, shards.end(), [](std::int64_t n) { return n != 1; })) {
    refuse("one shard along each dimension after the first");
  }
  // As in tf, no partitioner creates more shards than there are rows.
  return std::min(shards.front(), shape.dim(0));
}

ServerPicker::ServerPicker(VariablePlacement placement, int num_servers) : placement_(placement) {
  if (num_servers < 1) {
    fail(ErrorCode::kInvalidArgument,
         "ParameterServerStrategy: expected at least one ps task, got ", num_servers);
  }
  bytes_.resize(static_cast<std::size_t>(num_servers), 0);
}

int ServerPicker::next(std::size_t num_bytes) {
  auto chosen = static_cast<std::size_t>(next_);
  if (placement_ == VariablePlacement::kLeastBytes) {
    chosen = static_cast<std::size_t>(std::ranges::min_element(bytes_) - bytes_.begin());
  }
  next_ = (next_ + 1) % static_cast<int>(bytes_.size());
  bytes_[chosen] += num_bytes;
  return static_cast<int>(chosen);
}

}  // namespace tutti::internal
