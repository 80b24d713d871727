// Everything that can be wrong with a batch, found before any of it is applied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/server/stored_shard.h"

namespace tutti::internal {

/// An operation with what it names.
struct CheckedOperation {
  const Operation* operation = nullptr;
  StoredShard* shard = nullptr;                 // nullptr: the operation names none
  std::vector<StoredShard*> slots = {};         // of updates
  std::shared_ptr<const UpdateRule> rule = {};  // of updates, but for kAddOnce
  bool was_applied_before = false;

  /// The shard and its slots.
  std::vector<StoredShard*> shards() const;
};

struct BatchLookups {
  /// nullptr when there is none.
  std::function<StoredShard*(ShardId)> find_shard;
  std::function<std::shared_ptr<const UpdateRule>(const std::string&)> find_rule;
  std::uint64_t first_version = 1;  // of shards that are made
};

struct CheckedBatch {
  std::vector<CheckedOperation> operations = {};
  /// Shards that the batch makes, with their first values; the server has none of them yet.
  std::vector<std::unique_ptr<StoredShard>> created = {};
  bool has_sync = false;
};

/// The first `num_applied_before` operations that change values are not checked, but their shards
/// must be there. Throws kNotFound for an unknown shard, kInvalidArgument naming the operation's
/// number and its variable. `batch` outlives the result.
CheckedBatch check_batch(const OperationBatch& batch, std::uint64_t num_applied_before,
                         const BatchLookups& lookups);

/// Tries the synchronous updates of a batch on copies of the accumulators: what would be refused
/// throws here, as SyncAccumulator::take(). The shards are locked.
void try_sync_updates(const CheckedBatch& batch);

}  // namespace tutti::internal
