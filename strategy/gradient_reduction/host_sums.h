// Host memory through which the sums of GPUs' gradients go to other workers and come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/strategy/gradient_reduction/bucket_plan.h"
#include "tutti/tensor/buffer.h"
#include "tutti/tensor/device_backend.h"

namespace tutti::internal {

/// Pinned memory for the buckets of a plan, used by one step after the other: copies of the step
/// before may still be under way when the next one begins. One thread at a time uses a bucket.
class HostSums {
 public:
  struct Bucket {
    std::vector<Elements> partials;  // per partial sum of this worker: elements, then counters
    Elements rounded;                // of 16-bit types: elements of the sum in that type
    std::vector<std::shared_ptr<DeviceEvent>> copies;  // come after the last copies
  };

  HostSums(const BucketPlan& plan, std::size_t num_partials, int num_workers);
  /// Waits for the last copies.
  ~HostSums();
  HostSums(const HostSums&) = delete;
  HostSums& operator=(const HostSums&) = delete;

  std::size_t num_partials() const { return num_partials_; }
  Bucket& bucket(std::size_t index) { return buckets_[index]; }

 private:
  Elements allocate(std::size_t count, DType dtype);

  const std::size_t num_partials_;
  std::vector<BufferRef> memory_;
  std::vector<Bucket> buckets_;
};

}  // namespace tutti::internal
