// Rows of each shard of a variable, and the server that stores it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/strategy/parameter_server/partitioner.h"
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

namespace tutti::internal {

/// Rows [first, first + count) of a variable.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};
/// Returns contiguous row ranges; the first num_rows % num_shards of them have one extra row (tf's
/// "div").
std::vector<RowRange> cut_rows(std::int64_t num_rows, std::int64_t num_shards);
/// Returns the number of shards that `partitioner` chooses for this variable; 1 for a scalar, for a
/// variable without rows, or if there is no partitioner. Throws kInvalidArgument naming
/// variable_partitioner, the variable and the partitioner's result if the result is invalid.
std::int64_t num_shards_of(const Partitioner& partitioner, const std::string& variable,
                           const Shape& shape, DType dtype);

/// Chooses the server of each shard. Not thread-safe.
class ServerPicker {
 public:
  /// Throws kInvalidArgument if there are no servers.
  ServerPicker(VariablePlacement placement, int num_servers);
  /// Returns the server for the next shard, which has `num_bytes` bytes.
  int next(std::size_t num_bytes);

 private:
  VariablePlacement placement_;
  std::vector<std::size_t> bytes_;  // assigned to each server
  int next_ = 0;
};

}  // namespace tutti::internal
