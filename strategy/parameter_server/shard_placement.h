// The rows that each shard of a variable has, and the server that gets it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/strategy/parameter_server/partitioner.h"
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

namespace tutti::internal {

/// Rows of a variable: [first, first + count).
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const RowRange&) const = default;
};
/// Contiguous ranges, the first num_rows % num_shards of them one row longer ("div").
std::vector<RowRange> cut_rows(std::int64_t num_rows, std::int64_t num_shards);
/// How many shards `partitioner` gives this variable; one for scalars, variables without rows and
/// no partitioner. Throws kInvalidArgument naming variable_partitioner, the variable and what it
/// answered for an answer that is none.
std::int64_t num_shards_of(const Partitioner& partitioner, const std::string& variable,
                           const Shape& shape, DType dtype);

/// Which server gets the next shard. Threads: one at a time.
class ServerPicker {
 public:
  /// Throws kInvalidArgument for no servers.
  ServerPicker(VariablePlacement placement, int num_servers);
  /// For a shard of that many bytes.
  int next(std::size_t num_bytes);

 private:
  VariablePlacement placement_;
  std::vector<std::size_t> bytes_;  // per server
  int next_ = 0;
};

}  // namespace tutti::internal
