// Sums of the buckets of one reduction.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategy/reduction/given_gradients.h"
#include "strategy/reduction/gpu_sums.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::internal {

/// Sums that the replicas of this process make in memory of CPUs, slice by slice, by
/// ReplicaServices::ops. With several workers they are partial sums, of PartialSums::sum_dtype(),
/// in memory that the team's calls reach without a copy.
///
/// A bucket whose variables are cut over the replicas gives each replica its shard. Several workers
/// then exchange what their replicas own, and nothing else: in the buffers of partial sums the
/// elements are in the order of their owners, worker by worker (*scattered*), and the counters are
/// a sum of their own. Where values that are not finite are searched for, all workers need the
/// whole sum. Threads: as BucketSums.
class CpuSums {
 public:
  explicit CpuSums(GivenGradients& given);

  /// Makes the memory of the bucket's sums, and returns the slices for reduce().
  std::vector<SliceRange> begin(std::size_t bucket);
  void reduce(std::size_t bucket, SliceRange slice);
  /// Keeps the shards of one process, and lets go of gradients that have been summed.
  void end(std::size_t bucket);
  bool gives_shards() const { return gives_shards_; }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const;

  // With several workers.

  /// After begin().
  HostPartials& partials(std::size_t bucket) { return buckets_[bucket].partials; }
  /// Starts the exchange of a scattered bucket. `wire`: as in PartialSums.
  void start_scattered(std::size_t bucket, std::optional<DType> wire);
  /// Adds up a variable again, and returns its elements of each partial sum.
  std::vector<Elements> repeat(const BucketPlan::Item& item, std::size_t bucket);
  /// The sum over all workers is in the first partial sum: rounds and searches it, and keeps what
  /// replicas get.
  void take(std::size_t bucket);

 private:
  /// State of a bucket whose variables are cut over the replicas of several workers.
  struct Scattered {
    std::vector<std::size_t> counts;               // elements by worker; empty: not scattered
    std::vector<std::vector<std::size_t>> places;  // by worker and item, of the worker's elements
    std::vector<MutableTensor> partials;           // without counters
    MutableTensor own;                             // the sum, counts[worker] elements
    std::string name;
    CollectiveHandle sum;  // destroyed first: it waits
  };
  struct Bucket {
    std::vector<SumPlace> places;     // of the elements
    std::vector<MutableTensor> flat;  // the whole sum of each node, with counters; or these alone
    HostPartials partials;
    Scattered scattered;
  };

  std::span<const CanonicalNode> nodes() const;
  DType sum_dtype(std::size_t bucket) const;
  bool is_scattered(std::size_t bucket) const { return !buckets_[bucket].scattered.counts.empty(); }
  void plan_scattered(std::size_t bucket);
  void begin_shards(std::size_t bucket);
  void begin_whole(std::size_t bucket);
  void begin_scattered(std::size_t bucket);
  void take_whole(std::size_t bucket);
  void take_scattered(std::size_t bucket);
  /// Copies from `sums` what replicas get of the bucket. begin_of(piece): where the variable's
  /// first element is, or would be.
  template <class BeginOf>
  void keep(std::size_t bucket, const Tensor& sums, const BeginOf& begin_of);
  /// Calls visitor(worker, place, first, count): `count` elements of the item, from `first` on, are
  /// at `place` of the buffer, and the worker's.
  template <class Visitor>
  void for_owners(std::size_t bucket, const BucketPlan::Item& item, const Visitor& visitor) const;

  GivenGradients& given_;
  const bool gives_shards_;  // of variables that are cut over the replicas
  const CanonicalNode all_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<MutableTensor>> shards_;  // of one process: per variable and replica
};

/// The sums of one reduction's buckets, by ReplicaServices::ops, over all replicas of all workers.
/// With several workers, buckets are given to the team in their order, whatever the order in which
/// replicas fill them, and taken from it once all are given; bucket_sums.cc explains what travels
/// with a bucket. Replicas are numbered within this process. A failure of any call ends the
/// reduction.
class BucketSums {
 public:
  BucketSums(GivenGradients& given, PlanInUse& plan);
  /// Waits for the sums over workers that have been started.
  ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  /// Called by the replica when it has put its gradient of the variable into GivenGradients.
  void given(std::size_t replica, std::size_t variable);
  /// Called by the replica when it has put those of a whole bucket.
  void filled(std::size_t replica, std::size_t bucket);
  /// Called by one thread when all replicas have, and kinds are unified. Returns the slices that
  /// replicas have to reduce(); none where GPUs do, or nothing is to be added.
  std::vector<SliceRange> begin(std::size_t bucket);
  /// Any thread; slices of one bucket are disjoint.
  void reduce(std::size_t bucket, SliceRange slice);
  /// Called by one thread when all slices of the bucket are reduced.
  void end(std::size_t bucket);
  /// Returns true if replicas get their shards alone of what shards_of() names. end() then lets go
  /// of gradients, so that replicas should not run ahead of each other.
  bool gives_shards() const;
  /// Called by one thread when all buckets have ended. Waits for other workers, not for GPUs: later
  /// work of their compute streams sees the sums.
  void join();
  /// Afterwards, any thread: the bucket's sums on the replica's device. Nothing: each replica's
  /// gradients are the sums, but for what sum_of() has.
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const;
  /// Same as sum(), but of one variable, where sums are not kept by bucket: of one that shards_of()
  /// names that of the replica's shard, [count].
  std::optional<Tensor> sum_of(std::size_t variable, std::size_t replica) const;

 private:
  /// With several workers.
  struct Bucket {
    bool summed = false;  // by this worker
    bool taken = false;   // early, while others are given
    CollectiveHandle over_workers;
  };

  void search_alone();
  HostPartials& partials(std::size_t bucket) {
    return cpus_ ? cpus_->partials(bucket) : gpus_->partials(bucket);
  }
  /// Writes into the counters which gradients replicas have given.
  void count_kinds(std::size_t bucket);
  /// Gives buckets in their order: those that are summed and on the host, or all, for which it
  /// waits.
  void give(bool all);
  void give_bucket(std::size_t bucket) TUTTI_REQUIRES(mutex_);
  void take_bucket(std::size_t bucket);
  void take_early(std::size_t bucket) TUTTI_REQUIRES(mutex_);
  bool has_slices(std::size_t bucket);
  void take_kind(std::size_t bucket, const BucketPlan::Item& item, double num_dense,
                 double num_sparse);
  /// Adds up a variable of the bucket, which was made dense, again. All workers do.
  void repeat(const BucketPlan::Item& item, std::size_t bucket);
  void join_workers();
  std::size_t first_number();
  void write_numbers();
  void read_numbers();
  void share_findings();
  std::vector<IndexedSlices> slices_of_all_replicas(std::size_t variable);

  GivenGradients& given_;
  std::optional<CpuSums> cpus_;  // one of these two; neither for one replica of one process
  std::optional<GpuSums> gpus_;
  WorkerTeam* const team_;  // nullptr: this process has all replicas
  std::vector<Bucket> buckets_;
  Mutex mutex_;
  std::size_t next_to_give_ TUTTI_GUARDED_BY(mutex_) = 0;  // bucket
  std::uint64_t digest_ = 0;                               // of this worker, as it was sent
  std::vector<double> numbers_;  // behind the counters of one bucket, as they were sent
  bool digests_differ_ = false;
};

}  // namespace tutti::internal
