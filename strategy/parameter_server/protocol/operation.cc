// What clients ask of a parameter server: names of shards, and how many operations change values.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/operation.h"

#include <algorithm>
#include <charconv>

#include "core/hash.h"
#include "tutti/core/text.h"

namespace tutti::internal {

ShardId shard_id(const std::string& variable, int shard) {
  Hasher hasher;
  hasher.update(variable);
  hasher.update("#" + std::to_string(shard));
  const std::string digits = hasher.hex_digest();
  ShardId id = 0;
  std::from_chars(digits.data(), digits.data() + 16, id, 16);
  return id;
}

Shape ShardSpec::shape() const {
  return whole_shape.rank() == 0 ? whole_shape : whole_shape.with_dim(0, num_rows);
}

bool ShardSpec::has_rows() const {
  const std::int64_t whole = whole_shape.rank() == 0 ? 1 : whole_shape[0];
  return first_row >= 0 && num_rows >= 0 && first_row <= whole && num_rows <= whole - first_row;
}

std::string ShardSpec::to_string() const {
  if (num_shards == 1) return concat("'", variable, "'");
  return concat("'", variable, "' (shard ", shard, " of ", num_shards, ")");
}

const std::string& SharedText::text() const {
  static const std::string nothing;
  return text_ ? *text_ : nothing;
}

std::uint64_t num_changes(const OperationBatch& batch) {
  return static_cast<std::uint64_t>(std::ranges::count_if(batch.operations, changes_values));
}

}  // namespace tutti::internal
