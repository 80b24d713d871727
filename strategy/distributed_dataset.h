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
#include "tutti/data/dataset.h"

namespace tutti {

class Strategy;

struct InputOptions {
  /// Global batches read and cut ahead by a thread of their own; 0: on the caller's thread.
  int prefetch = 2;
};

/// Yields PerReplica<Batch>: slice v of each global batch for replica v. A replica without rows gets an empty batch and still
/// runs. begin() number e starts epoch e. Made by Strategy::distribute_dataset(). A handle: copies share the position. Used by one
/// thread. tf.distribute.DistributedDataset.
class DistributedDataset {
 public:
  class Iterator {
   public:
    using value_type = PerReplica<Batch>;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    const PerReplica<Batch>& operator*() const { return *current_; }
    const PerReplica<Batch>* operator->() const { return &*current_; }
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const { return !current_.has_value(); }

   private:
    friend class DistributedDataset;
    struct State;
    std::shared_ptr<State> state_;
    std::optional<PerReplica<Batch>> current_;
  };

  /// Starts the next epoch (or, after restore(), goes on in the middle of the restored one). Ends an older iterator.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// Global batches of an epoch, if known; kInfinite when it never ends.
  std::optional<std::int64_t> cardinality() const;
  /// Rows of a full global batch (by function: of a full step), if known.
  std::optional<std::int64_t> global_batch_size() const;
  /// Seconds that the consumer waited for input since the last call: the "input wait" of the progress line.
  double take_wait_seconds();

  /// (epoch, batches handed out in it): what a checkpoint keeps. Batches prefetched but not handed out do not count.
  Json position() const;
  void restore(const Json& position);

 private:
  friend class Strategy;
  struct Impl;
  explicit DistributedDataset(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

/// Row counts of the replicas for a batch of `rows` rows out of a full batch of `global_batch_size` (tf's rule with one worker): the full
/// batch's sizes (the first G mod V replicas one larger), filled in order; the tail's last replicas get fewer rows or none.
std::vector<std::int64_t> replica_rows(std::int64_t rows, std::int64_t global_batch_size,
                                       int num_replicas);
/// The same for explicit shares: sizes proportional to `weights` by largest remainder (ties: lower replica), for any `rows`.
std::vector<std::int64_t> weighted_replica_rows(std::int64_t rows, std::span<const double> weights);
/// tf's batch_sizes: num_workers * replicas_per_worker sub-batch sizes, for worker `worker` rotated left by worker * replicas_per_worker.
std::vector<std::int64_t> batch_sizes_for_worker(std::int64_t global_batch_size, int num_workers,
                                                 int replicas_per_worker, int worker);
/// Cuts each batch of `dataset` into pieces of the given sizes, cyclically (tf's rebatch); `sizes` unknown (empty): pieces of ceil(rows / num_pieces).
Dataset rebatch(const Dataset& dataset, std::vector<std::int64_t> sizes, BatchOptions options = {});
Dataset rebatch_evenly(const Dataset& dataset, int num_pieces);

}  // namespace tutti
