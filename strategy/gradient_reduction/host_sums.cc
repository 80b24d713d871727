// Host memory through which the sums of GPUs' gradients go to other workers and come back.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/gradient_reduction/host_sums.h"

#include "tutti/core/logging.h"
#include "tutti/strategy/multi_worker/worker_team.h"
#include "tutti/tensor/gpu/pinned_memory.h"

namespace tutti::internal {

Elements HostSums::allocate(std::size_t count, DType dtype) {
  memory_.push_back(allocate_pinned(count * size_of(dtype)));
  return {memory_.back()->data(), count, dtype};
}

HostSums::HostSums(const BucketPlan& plan, std::size_t num_partials, int num_workers)
    : num_partials_(num_partials) {
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketPlan::Bucket& each = plan.buckets[b];
    const std::size_t count = each.count + plan.num_counters(b, num_workers);
    const DType dtype = WorkerTeam::sum_dtype(each.dtype);
    Bucket& bucket = buckets_.emplace_back();
    for (std::size_t p = 0; p < num_partials; ++p) {
      bucket.partials.push_back(allocate(count, dtype));
    }
    if (dtype != each.dtype) bucket.rounded = allocate(each.count, each.dtype);
  }
}

HostSums::~HostSums() {
  for (const Bucket& bucket : buckets_) {
    for (const auto& copy : bucket.copies) {
      try {
        copy->synchronize();
      } catch (const std::exception& error) {  // a GPU that has failed copies nothing more
        log(LogLevel::kError, concat("sums of gradients on the host: ", error.what()));
      }
    }
  }
}

}  // namespace tutti::internal
