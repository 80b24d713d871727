// Who keeps the changes of a server somewhere else, before they are confirmed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

class VariableStore;

/// Gets every batch that changes or makes something, when it was checked and before it is applied.
/// Batches that meet at a shard, or are of one stream, come in the order in which they are applied:
/// their locks are held. Applying them again in the order of the calls, to the state that there was
/// when the first one came, gives the same bits. Threads: any.
class ChangeKeeper {
 public:
  /// Nothing: it is kept.
  using Kept = std::function<void(const std::optional<Error>& problem)>;

  virtual ~ChangeKeeper() = default;
  /// True: it is kept. False: `kept` is called once, later, by another thread; until then nobody
  /// hears that the batch was applied. What it throws refuses the batch.
  virtual bool keep(const OperationBatch& batch, Kept kept) = 0;
};

/// What a keeper got, applied to the state of before: why it was refused, which is no state that
/// the batch came to.
std::optional<Error> apply_again(VariableStore& store, OperationBatch batch);

}  // namespace tutti::internal
