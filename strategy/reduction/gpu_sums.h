// Buckets in the memory of GPUs: packed by each replica, searched for values that are not finite.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cross_device_ops/device_work.h"
#include "strategy/reduction/given_gradients.h"

namespace tutti::internal {

/// The flat buffers of one reduction's buckets, which pack() makes. Nothing here waits for a GPU
/// but search() and wait(). Threads: of a bucket, each replica its own buffers until all are
/// packed; then one.
class GpuBuckets {
 public:
  using Event = std::shared_ptr<DeviceEvent>;
  struct Bucket {
    std::vector<MutableTensor> flat;   // per replica, reduced in place
    std::vector<MutableTensor> wide;   // per replica: a 16-bit bucket as float32, or none
    std::unique_ptr<DeviceWork> work;  // with other workers: on their sum
  };

  /// `is_widened(dtype)`: of buckets that are to be rounded once only.
  GpuBuckets(GivenGradients& given, std::function<bool(DType)> is_widened);

  Bucket& operator[](std::size_t bucket) { return buckets_[bucket]; }
  const Bucket& operator[](std::size_t bucket) const { return buckets_[bucket]; }

  /// The replica's dense gradients of the bucket, in one launch of its compute stream; zeros
  /// between and where it has none.
  void pack(std::size_t replica, std::size_t bucket);
  void pack_all(std::size_t bucket);
  /// Of replicas whose gradients were made dense after they had packed them.
  void pack_made_dense(std::size_t bucket);
  /// What holds results, and what is summed; both as part of the bucket's work, if it has one.
  std::vector<ReplicaBuffer> flat_buffers(std::size_t bucket) const;
  std::vector<ReplicaBuffer> summed_buffers(std::size_t bucket) const;
  std::vector<Event> mark(StreamId stream) const;
  void wait(const std::vector<Event>& events) const;
  /// Looks for values that are not finite, notes them, and has buckets with some summed again from
  /// what is finite, by sum_again(bucket), if zeros are to stand for them. The host reads a number
  /// of each bucket, all at once, and, if there are some, the gradients themselves.
  void search(const std::function<void(std::size_t bucket)>& sum_again);

 private:
  void make_buffers(std::size_t replica, std::size_t bucket);

  GivenGradients& given_;
  const std::function<bool(DType)> is_widened_;
  std::vector<Bucket> buckets_;
};

}  // namespace tutti::internal
