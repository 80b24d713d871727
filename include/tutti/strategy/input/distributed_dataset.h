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

/// Dataset whose elements are PerReplica<Batch>, with one slice of the global batch for each
/// replica of this worker. A replica without rows gets an empty batch and still runs; all workers
/// take the same number of steps. The first call to begin() starts epoch 0, the next one epoch 1,
/// and so on. Created by Strategy::distribute_dataset(). A handle: copies share the position. Not
/// thread-safe. Corresponds to tf.distribute.DistributedDataset.
class DistributedDataset {
 public:
  class Iterator {
   public:
    using value_type = PerReplica<Batch>;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    /// operator* and operator-> throw kOutOfRange at the end.
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

  /// Starts the next epoch, or resumes the restored epoch after restore(). Invalidates older
  /// iterators.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// Returns the number of global batches per epoch, if known; kInfinite if the dataset never ends.
  std::optional<std::int64_t> cardinality() const;
  /// Returns the number of rows of a full global batch, if known. For a dataset made by a function,
  /// that is the number of rows of a full step.
  std::optional<std::int64_t> global_batch_size() const;
  /// Returns the seconds spent waiting for input since the last call. The progress line shows them.
  double take_wait_seconds();

  /// Returns the position that a checkpoint stores: the epoch, the number of its steps yielded or
  /// skipped, and the global batch size. Equal on all workers. Prefetched batches that were not
  /// yielded do not count. restore() throws kFailedPrecondition for a position within an epoch if
  /// both global batch sizes are known and differ.
  Json position() const;
  void restore(const Json& position);

 private:
  friend DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan);
  struct Impl;
  explicit DistributedDataset(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

/// Returns the dataset, split by `plan`. Called by strategies.
DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan);

}  // namespace tutti
