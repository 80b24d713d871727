// The rows that each shard of a variable has.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/strategy/parameter_server/partitioner.h"

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

}  // namespace tutti::internal
