// A dataset whose elements are one batch per replica.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/cross_device_ops/per_replica.h"
#include "tutti/strategy/input/input_plan.h"

namespace tutti {

/// Yields PerReplica<Batch>: slice v of each global batch for replica v of this worker. A replica
/// without rows gets an empty batch and still runs; all workers make the same number of steps. Call
/// number e of begin() starts epoch e. Made by Strategy::distribute_dataset(). A handle: copies
/// share the position. Not thread-safe. tf.distribute.DistributedDataset.
class DistributedDataset {
 public:
  class Iterator {
   public:
    using value_type = PerReplica<Batch>;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    /// Throw kOutOfRange at the end.
    const PerReplica<Batch>& operator*() const;
    const PerReplica<Batch>* operator->() const { return &**this; }
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const { return !current_.has_value(); }

   private:
    friend class DistributedDataset;
    struct State;
    std::shared_ptr<State> state_;
    std::optional<PerReplica<Batch>> current_;
  };

  /// Starts the next epoch, or continues the restored one after restore(). Ends older iterators.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// Returns the global batches per epoch, if known; kInfinite if it never ends.
  std::optional<std::int64_t> cardinality() const;
  /// Returns the rows of a full global batch (by function: of a full step), if known.
  std::optional<std::int64_t> global_batch_size() const;
  /// Returns the seconds of waiting for input since the last call, as in the progress line.
  double take_wait_seconds();

  /// Returns the position that a checkpoint stores: epoch, steps yielded or skipped in it, and
  /// global batch, equal on all workers. Prefetched batches that were not yielded do not count.
  /// restore() throws kFailedPrecondition for a position within an epoch if its global batch
  /// differs, where both are known.
  Json position() const;
  void restore(const Json& position);

 private:
  friend DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan);
  struct Impl;
  explicit DistributedDataset(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

/// For strategies: returns the dataset, split by `plan`.
DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan);

}  // namespace tutti
