// Per-worker values, and per-worker iterators over datasets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "tutti/data/dataset.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti {

/// Argument to schedule() for a step whose parameter is T, T& or const T&. The step receives the T
/// of the worker that runs it; the worker creates it on first use and again after a restart. Copies
/// share the values. Workers destroy the values when all copies, including those in closures, are
/// destroyed. Corresponds to tf.distribute.experimental.coordinator.PerWorkerValues.
template <class T>
class PerWorkerValues {
 public:
  explicit PerWorkerValues(PerWorkerHandle handle) : handle_(std::move(handle)) {}
  const PerWorkerHandle& handle() const { return handle_; }

 private:
  PerWorkerHandle handle_;
};

/// One worker's pass over its dataset. A handle: copies share the position. Not thread-safe.
class DatasetIterator {
 public:
  DatasetIterator(Dataset dataset, std::uint64_t epoch)
      : dataset_(std::move(dataset)), elements_(dataset_.iterate(epoch)) {}
  /// Returns the next batch. Throws kOutOfRange after the last one.
  Batch next();
  /// Same as next(), but returns nullopt after the last batch.
  std::optional<Batch> try_next();

 private:
  Dataset dataset_;  // must outlive elements_
  std::shared_ptr<ElementIterator> elements_;
};

/// One worker's pass over a dataset that is distributed over the worker's replicas: each element
/// has one batch per replica. A handle. Not thread-safe.
class DistributedIterator {
 public:
  explicit DistributedIterator(DistributedDataset dataset) : dataset_(std::move(dataset)) {}
  /// Returns the next element. Throws kOutOfRange after the last one.
  PerReplica<Batch> next();
  /// Same as next(), but returns nullopt after the last element.
  std::optional<PerReplica<Batch>> try_next();

 private:
  DistributedDataset dataset_;                         // must outlive place_
  std::optional<DistributedDataset::Iterator> place_;  // nullopt before the first batch
};

/// Dataset that each worker reads independently, created by create_per_worker_dataset(). A handle.
template <class Iterator>
class PerWorkerDatasetOf {
 public:
  /// Starts a new pass on each worker. The shuffled order differs between workers and between
  /// passes.
  PerWorkerValues<Iterator> iterate() const { return iterate_(); }

 private:
  friend class ClusterCoordinator;
  explicit PerWorkerDatasetOf(std::function<PerWorkerValues<Iterator>()> iterate)
      : iterate_(std::move(iterate)) {}
  std::function<PerWorkerValues<Iterator>()> iterate_;
};
/// PerWorkerDataset yields one batch at a time, PerWorkerDistributedDataset one batch per replica.
using PerWorkerDataset = PerWorkerDatasetOf<DatasetIterator>;
using PerWorkerDistributedDataset = PerWorkerDatasetOf<DistributedIterator>;

}  // namespace tutti
