// Sums of the buckets of one reduction.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategy/reduction/cpu_sums.h"
#include "strategy/reduction/given_gradients.h"
#include "strategy/reduction/gpu_sums.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::internal {

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
