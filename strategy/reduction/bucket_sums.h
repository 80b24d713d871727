// Sums of the buckets of one gradient reduction.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategy/reduction/bucket_inputs.h"
#include "strategy/reduction/gpu_sums.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::internal {

/// Sums in CPU memory over the replicas of this process, slice by slice, with ReplicaServices::ops.
/// With several workers, these are partial sums of type PartialSums::sum_dtype(), in memory that
/// the team's calls access without a copy.
///
/// A bucket whose variables are sharded over the replicas gives each replica its shard. Several
/// workers then exchange only the elements that their replicas own; in the buffers of partial sums,
/// the elements are in the order of their owners, worker by worker (*scattered*), and the counters
/// are a separate sum. When sums are searched for non-finite values, all workers need the full sum.
/// Thread safety: as for BucketSums.
class CpuSums {
 public:
  explicit CpuSums(BucketInputs& given);

  /// Allocates the bucket's sums, and returns the slices for reduce().
  std::vector<SliceRange> begin(std::size_t bucket);
  void reduce(std::size_t bucket, SliceRange slice);
  /// If gives_shards(): without a team, keeps the shards of the sums; releases the gradients unless
  /// a later check needs them.
  void end(std::size_t bucket);
  bool gives_shards() const { return gives_shards_; }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const;

  // Functions for several workers.

  /// Requires: begin() has returned.
  HostPartials& partials(std::size_t bucket) { return buckets_[bucket].partials; }
  /// Starts the exchange of a scattered bucket. `wire`: as in PartialSums.
  void start_scattered(std::size_t bucket, std::optional<DType> wire);
  /// Sums a variable again. Returns the variable's elements in each partial sum.
  std::vector<Elements> repeat(const BucketPlan::Item& item, std::size_t bucket);
  /// Rounds the sum over all workers (stored in the first partial sum), searches it for non-finite
  /// values, and keeps the replicas' results.
  void take(std::size_t bucket);

 private:
  /// State of a bucket whose variables are sharded over the replicas of several workers.
  struct Scattered {
    std::vector<std::size_t> counts;               // elements per worker; empty: not scattered
    std::vector<std::vector<std::size_t>> places;  // offsets per worker and item
    std::vector<MutableTensor> partials;           // partial sums without counters
    MutableTensor own;                             // the sum, counts[worker] elements
    std::string name;
    CollectiveHandle sum;  // destroyed first, because its destructor waits
  };
  struct Bucket {
    std::vector<SumPlace> places;  // where sums of elements are stored
    /// One buffer per node. It holds the sum and, with a team, the counters; only the counters if
    /// the bucket is scattered.
    std::vector<MutableTensor> flat;
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
  void collect_scattered(std::size_t bucket);
  /// Copies the replicas' results for the bucket from `sums`. begin_of(piece) is the offset of the
  /// variable's element 0 in `sums`, even if that element is not stored there.
  template <class BeginOf>
  void keep(std::size_t bucket, const Tensor& sums, const BeginOf& begin_of);
  /// Calls visitor(worker, place, first, count): the worker owns `count` elements of the item,
  /// beginning with `first`, which are stored at offset `place` in the buffer.
  template <class Visitor>
  void for_owners(std::size_t bucket, const BucketPlan::Item& item, const Visitor& visitor) const;

  BucketInputs& given_;
  const bool gives_shards_;  // true if any variable is sharded over the replicas
  const CanonicalNode all_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<MutableTensor>> shards_;  // [variable][replica]; not used with a team
};

/// Sums of one reduction's buckets over all replicas of all workers, computed by
/// ReplicaServices::ops. With several workers, buckets are passed to the team in order, regardless
/// of the order in which replicas fill them, and results are read after all buckets have been
/// passed. bucket_sums.cc explains the numbers sent with a bucket. Replicas are numbered within
/// this process. A failure of any call ends the reduction.
class BucketSums {
 public:
  BucketSums(BucketInputs& given, PlanInUse& plan);
  /// Waits for pending sums over workers.
  ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  /// Called by the replica when its gradient for the variable is in BucketInputs.
  void given(std::size_t replica, std::size_t variable);
  /// Called by the replica when all of its gradients for the bucket are in BucketInputs.
  void filled(std::size_t replica, std::size_t bucket);
  /// Called by one thread once all replicas have filled the bucket and each variable's gradients
  /// are of one kind. Returns the slices that replicas have to reduce(); empty if GPUs reduce the
  /// bucket, or if there is nothing to add.
  std::vector<SliceRange> begin(std::size_t bucket);
  /// Thread-safe; slices of one bucket are disjoint.
  void reduce(std::size_t bucket, SliceRange slice);
  /// Called by one thread once all slices of the bucket have been reduced.
  void end(std::size_t bucket);
  /// Returns true if each replica receives only its shard of every variable for which shards_of()
  /// is set. In that case, end() releases gradients, so replicas should not run ahead of each
  /// other.
  bool gives_shards() const;
  /// Called by one thread after end() has been called for all buckets. Waits for other workers, but
  /// not for GPUs: later work in the GPUs' compute streams sees the sums.
  void join();
  /// Returns the bucket's sums on the replica's device, after join(). Returns nullopt if the bucket
  /// has no stored sums; each sum is then the result of sum_of() or, without one, the replica's own
  /// gradient. Thread-safe.
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const;
  /// Same as sum(), but for one variable whose sum is stored separately from its bucket. If
  /// shards_of() is set, returns only the sum of the replica's shard, [count].
  std::optional<Tensor> sum_of(std::size_t variable, std::size_t replica) const;

 private:
  /// State of a bucket if there are several workers.
  struct Bucket {
    bool summed = false;  // true once summed by this worker
    bool taken = false;   // true once collect_early() has read the result
    CollectiveHandle over_workers;
  };

  void search_alone();
  HostPartials& partials(std::size_t bucket) {
    return cpus_ ? cpus_->partials(bucket) : gpus_->partials(bucket);
  }
  /// Writes the kinds of the replicas' gradients to the counters.
  void count_kinds(std::size_t bucket);
  /// Passes buckets to the team in order. If `all`, waits for each bucket; otherwise stops at the
  /// first one that is not summed yet or not on the host.
  void submit_buckets(bool all);
  void submit_bucket(std::size_t bucket) TUTTI_REQUIRES(mutex_);
  void collect_bucket(std::size_t bucket);
  void collect_early(std::size_t bucket) TUTTI_REQUIRES(mutex_);
  bool has_slices(std::size_t bucket);
  void take_kind(std::size_t bucket, const BucketPlan::Item& item, double num_dense,
                 double num_sparse);
  /// Sums a variable's gradients in the bucket again after they have been made dense. Collective:
  /// every worker must call it.
  void repeat(const BucketPlan::Item& item, std::size_t bucket);
  void join_workers();
  std::size_t first_number();
  void write_numbers();
  void read_numbers();
  void share_findings();
  std::vector<IndexedSlices> slices_of_all_replicas(std::size_t variable);

  BucketInputs& given_;
  std::optional<CpuSums> cpus_;  // either cpus_ or gpus_ is set; neither for a single replica
  std::optional<GpuSums> gpus_;
  WorkerTeam* const team_;  // null: this process has all replicas
  std::vector<Bucket> buckets_;
  Mutex mutex_;
  std::size_t next_to_give_ TUTTI_GUARDED_BY(mutex_) = 0;  // index of the next bucket for the team
  std::uint64_t digest_ = 0;                               // digest of this worker, as sent
  std::vector<double> numbers_;                            // sent after the counters of one bucket
  bool digests_differ_ = false;
};

}  // namespace tutti::internal
