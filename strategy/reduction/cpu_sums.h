// Sums of buckets in memory of CPUs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategy/reduction/given_gradients.h"

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

}  // namespace tutti::internal
