// Sums of buckets in memory of GPUs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "strategy/reduction/given_gradients.h"
#include "tensor/device_backend.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Sums in flat buffers, one per replica and bucket, which replicas pack. Nothing here waits for a
/// GPU but wait_for_host() and the search for values that are not finite.
///
/// *By the operation* of the strategy, among the replicas of one process.
/// *By the hosts* of several workers: each bucket's partial sums are made by the GPUs and copied to
/// pinned memory while the backward pass continues; the host waits for these copies alone (events),
/// passes them to the other workers as those of CPUs, and copies the result to every GPU.
/// *By NCCL* among the GPUs of several workers: the counters go from host to host; when those of
/// all buckets are there, all workers have ended their backward pass, so none waits in NCCL for one
/// that has failed. Then the sums are put into the streams, each after its own gradients.
///
/// Where variables are cut over the replicas of one process, each replica keeps its shards, and the
/// rest of a bucket is let go once its sum is there. Where values that are not finite are
/// searched for, sums stay whole: the search begins when all are there. Threads: of a bucket, each
/// replica its own buffers until all are packed; then as BucketSums.
class GpuSums {
 public:
  GpuSums(GivenGradients& given, PlanInUse& plan);

  /// Copies the replica's dense gradients to its buffer of the bucket, in one launch of its compute
  /// stream; zeros where there is none.
  void pack(std::size_t replica, std::size_t bucket);
  /// Starts the sum, or what precedes it. All replicas have packed the bucket.
  void begin(std::size_t bucket);
  /// After the bucket was started, in one process: takes shards of those before it.
  void end(std::size_t bucket);
  bool gives_shards() const { return gives_shards_; }
  /// Returns true if sums over workers are searched here, after those of the hosts.
  bool searches_sums() const { return by_ != SummedBy::kHosts; }
  /// Later work of the replicas' compute streams sees the sums.
  void join();
  Tensor sum(std::size_t bucket, std::size_t replica) const {
    return buckets_[bucket].flat[replica].freeze();
  }

  // With several workers.

  HostPartials& partials(std::size_t bucket) { return buckets_[bucket].partials; }
  /// Returns true if the bucket's partial sums are on the host and nothing is left to be done to
  /// them.
  bool is_on_host(std::size_t bucket) const;
  /// Makes that so.
  void wait_for_host(std::size_t bucket);
  /// Adds up the bucket again. Returns its elements of each partial sum, if they are on the host.
  std::vector<Elements> repeat(std::size_t bucket);
  /// The sum over all workers is in the first partial sum: rounds and searches it, and copies it to
  /// the GPUs.
  void take(std::size_t bucket);

 private:
  enum class SummedBy { kOperation, kHosts, kNccl };
  using Events = std::vector<std::shared_ptr<DeviceEvent>>;  // per replica
  struct Bucket {
    std::vector<MutableTensor> flat;  // per replica, reduced in place
    std::vector<MutableTensor> wide;  // per replica: a 16-bit bucket as float32, or none
    HostPartials partials;
    std::vector<float> counters;  // by NCCL: what `partials` is
    Events events;                // partial sums are on the host; by NCCL: gradients are packed
    DeviceWork* work = nullptr;   // of `pending`, with several workers
    PendingReduction pending;     // destroyed first: it joins
  };

  bool is_widened(DType dtype) const;
  void make_buffers(std::size_t replica, std::size_t bucket);
  void pack_all(std::size_t bucket);
  void start(std::size_t bucket);
  void start_operation(std::size_t bucket);
  void start_copies_to_host(std::size_t bucket);
  void start_nccl(std::size_t bucket);
  void begin_work(std::size_t bucket, std::unique_ptr<DeviceWork> work);
  void wait_for_copies(std::size_t bucket) const;
  /// Replaces gradients that are not finite by zeros before anything of them is given away.
  void clear_partial_sums(std::size_t bucket);
  void search();
  void take_shards(std::size_t bucket) TUTTI_REQUIRES(mutex_);
  /// The buffers that get results, and those that are summed; as part of the bucket's work, if it
  /// has one.
  std::vector<ReplicaBuffer> flat_buffers(std::size_t bucket) const;
  std::vector<ReplicaBuffer> summed_buffers(std::size_t bucket) const;
  Events mark(StreamId stream) const;

  GivenGradients& given_;
  const SummedBy by_;
  const bool gives_shards_;
  std::shared_ptr<HostSums> hosts_;  // by the hosts
  std::vector<Bucket> buckets_;
  Mutex mutex_;
  std::deque<std::size_t> under_way_ TUTTI_GUARDED_BY(mutex_);  // buckets
};

}  // namespace tutti::internal
