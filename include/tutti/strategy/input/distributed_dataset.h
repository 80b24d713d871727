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
/// without rows gets an empty batch and still runs; all workers make the same number of steps.
/// begin() number e starts epoch e. Made by Strategy::distribute_dataset(). A handle: copies share
/// the position. Used by one thread. tf.distribute.DistributedDataset.
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

  /// Starts the next epoch (or, after restore(), goes on in the middle of the restored one). Ends
  /// an older iterator.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// Global batches of an epoch, if known; kInfinite when it never ends.
  std::optional<std::int64_t> cardinality() const;
  /// Rows of a full global batch (by function: of a full step), if known.
  std::optional<std::int64_t> global_batch_size() const;
  /// Seconds that the consumer waited for input since the last call: the "input wait" of the
  /// progress line.
  double take_wait_seconds();

  /// (epoch, steps handed out or left out in it, global batch), the same on all workers: what a
  /// checkpoint keeps. Batches prefetched but not handed out do not count. restore() throws
  /// kFailedPrecondition for a position within an epoch of another global batch, where both are
  /// known.
  Json position() const;
  void restore(const Json& position);

 private:
  friend DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan);
  struct Impl;
  explicit DistributedDataset(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

/// For strategies: the dataset, cut as the plan says.
DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan);

}  // namespace tutti
