// Sums buckets of gradients in GPU memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "strategy/reduction/bucket_inputs.h"
#include "tensor/device_backend.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Sums in flat buffers, one per replica and bucket, which replicas pack. No function waits for a
/// GPU except wait_for_host() and the search for non-finite values.
///
/// *By the operation* of the strategy: among the replicas of one process.
/// *By the hosts* of several workers: the GPUs compute each bucket's partial sums and copy them to
///   pinned memory during the backward pass. The host waits only for these copies (events), sums
///   them over the workers like CPU sums, and copies the result to every GPU.
/// *By NCCL* among the GPUs of several workers: the hosts exchange the counters. Once those of all
///   buckets have arrived, all workers have ended their backward pass, so no worker waits in NCCL
///   for a failed one. Then the sums are queued in the streams, each after its own gradients.
///
/// If variables are sharded across the replicas of one process, each replica keeps its shards, and
/// the rest of a bucket is released after its sum. If non-finite values are searched for, sums are
/// kept in full: the search begins once all are complete. Threads, per bucket: each replica
/// accesses its own buffers until all are packed; then the rules of BucketSums apply.
class GpuSums {
 public:
  GpuSums(BucketInputs& given, PlanInUse& plan);

  /// Copies the replica's dense gradients to its buffer for the bucket, in one launch on its
  /// compute stream. Writes zeros in place of missing dense gradients.
  void pack(std::size_t replica, std::size_t bucket);
  /// Starts the sum, or the copies or events that precede it. Requires: all replicas have packed
  /// the bucket.
  void begin(std::size_t bucket);
  /// Releases the bucket's gradients, and extracts the replicas' shards of an earlier bucket. Does
  /// nothing unless gives_shards().
  void end(std::size_t bucket);
  bool gives_shards() const { return gives_shards_; }
  /// Makes later work on the replicas' compute streams wait for the sums.
  void join();
  Tensor sum(std::size_t bucket, std::size_t replica) const {
    return buckets_[bucket].flat[replica].freeze();
  }

  // Functions used only with several workers.

  HostPartials& partials(std::size_t bucket) { return buckets_[bucket].partials; }
  /// Returns true if the bucket's partial sums are on the host and complete.
  bool is_on_host(std::size_t bucket) const;
  /// Waits until is_on_host().
  void wait_for_host(std::size_t bucket);
  /// Sums the bucket again. Returns each partial sum's elements if they are on the host.
  std::vector<Elements> repeat(std::size_t bucket);
  /// Rounds the sum over all workers (stored in the first partial sum), searches it for non-finite
  /// values, and copies it to the GPUs.
  void take(std::size_t bucket);

 private:
  enum class SummedBy { kOperation, kHosts, kNccl };
  using Events = std::vector<std::shared_ptr<DeviceEvent>>;  // per replica
  struct Bucket {
    std::vector<MutableTensor> flat;  // per replica, reduced in place
    std::vector<MutableTensor> wide;  // per replica: a 16-bit bucket converted to float32, or empty
    HostPartials partials;
    std::vector<float> counters;  // storage for `partials` with NCCL
    Events events;                // recorded after copies to the host; with NCCL, after packing
    DeviceWork* work = nullptr;   // set only with several workers; owned by `pending`
    PendingReduction pending;     // destroyed first, because its destructor waits
  };

  bool is_widened(DType dtype) const;
  void make_buffers(std::size_t replica, std::size_t bucket);
  void pack_all(std::size_t bucket);
  void start(std::size_t bucket);
  void start_operation(std::size_t bucket);
  void start_copies_to_host(std::size_t bucket);
  void start_nccl(std::size_t bucket);
  void begin_work(std::size_t bucket, std::unique_ptr<DeviceWork> work);
  void search();
  void take_shards(std::size_t bucket) TUTTI_REQUIRES(mutex_);
  /// Return the buffers that receive results, and the buffers that are summed. Operations on them
  /// are queued on the streams of the bucket's `work`, if set.
  std::vector<ReplicaBuffer> flat_buffers(std::size_t bucket) const;
  std::vector<ReplicaBuffer> summed_buffers(std::size_t bucket) const;
  Events mark(StreamId stream) const;

  BucketInputs& given_;
  const SummedBy by_;
  const bool gives_shards_;
  std::shared_ptr<HostSums> hosts_;  // set if the hosts compute the sums
  std::vector<Bucket> buckets_;
  Mutex mutex_;
  std::deque<std::size_t> under_way_ TUTTI_GUARDED_BY(mutex_);  // buckets being summed
};

}  // namespace tutti::internal
