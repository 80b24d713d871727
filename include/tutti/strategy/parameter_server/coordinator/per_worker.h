// What each worker has one of: values, and iterators over datasets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "tutti/data/dataset.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti {

/// An argument of schedule() for a step whose parameter is T, T& or const T&: it gets the T of the
/// worker that it runs on, made there when first asked for, and made anew after the worker was
/// started again. Copies share the values; workers drop them when the last copy, and the last
/// closure with one, are gone. tf.distribute.experimental.coordinator.PerWorkerValues.
template <class T>
class PerWorkerValues {
 public:
  explicit PerWorkerValues(PerWorkerHandle handle) : handle_(std::move(handle)) {}
  const PerWorkerHandle& handle() const { return handle_; }

 private:
  PerWorkerHandle handle_;
};

/// One worker's pass over its dataset. A handle: copies share the position. Used by one thread at a
/// time.
class DatasetIterator {
 public:
  DatasetIterator(Dataset dataset, std::uint64_t epoch)
      : dataset_(std::move(dataset)), elements_(dataset_.iterate(epoch)) {}
  /// Throws kOutOfRange at the end.
  Batch next();
  /// Nothing at the end.
  std::optional<Batch> try_next();

 private:
  Dataset dataset_;  // lives as long as its pass
  std::shared_ptr<ElementIterator> elements_;
};

/// One worker's pass over a dataset that is distributed over the replicas of the worker: a batch
/// for each of them. A handle. Used by one thread at a time.
class DistributedIterator {
 public:
  explicit DistributedIterator(DistributedDataset dataset) : dataset_(std::move(dataset)) {}
  /// Throws kOutOfRange at the end.
  PerReplica<Batch> next();
  /// Nothing at the end.
  std::optional<PerReplica<Batch>> try_next();

 private:
  DistributedDataset dataset_;                         // lives as long as its pass
  std::optional<DistributedDataset::Iterator> place_;  // nothing before the first batch
};

/// A dataset that each worker reads for itself. Made by create_per_worker_dataset(). A handle.
template <class Iterator>
class PerWorkerDatasetOf {
 public:
  /// A new pass on each worker; the order of shuffles differs from worker to worker and from pass
  /// to pass.
  PerWorkerValues<Iterator> iterate() const { return iterate_(); }

 private:
  friend class ClusterCoordinator;
  explicit PerWorkerDatasetOf(std::function<PerWorkerValues<Iterator>()> iterate)
      : iterate_(std::move(iterate)) {}
  std::function<PerWorkerValues<Iterator>()> iterate_;
};
/// Datasets of workers, by what reads them: one replica, or all replicas of the worker.
using PerWorkerDataset = PerWorkerDatasetOf<DatasetIterator>;
using PerWorkerDistributedDataset = PerWorkerDatasetOf<DistributedIterator>;

}  // namespace tutti
