// Sums of a reduction's buckets: the interface, and its implementations by place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "autograd/replica_shards.h"
#include "strategy/reduction/given_gradients.h"

namespace tutti::internal {

/// The sums of one reduction's buckets. Replicas are numbered within this process. BucketReducer
/// calls; a failure of any call ends the reduction.
class BucketSums {
 public:
  explicit BucketSums(GivenGradients& given) : given_(given) {}
  virtual ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  /// By the replica, when it has put its gradient of the variable into GivenGradients.
  virtual void given(std::size_t /*replica*/, std::size_t /*variable*/) {}
  /// By the replica, when it has put those of a whole bucket.
  virtual void filled(std::size_t /*replica*/, std::size_t /*bucket*/) {}
  /// By one thread, when all replicas have, and kinds are unified. Returns the slices that replicas
  /// have to reduce(); none where the sum is made otherwise.
  virtual std::vector<SliceRange> begin(std::size_t bucket) = 0;
  /// The same for a variable whose gradients are slices: sums those of this process.
  virtual void sum_slices(std::size_t variable) {
    given_.sum_slices(variable, given_.slices_of(variable));
  }
  /// Any thread; slices of one bucket are disjoint.
  virtual void reduce(std::size_t /*bucket*/, SliceRange /*slice*/) {}
  /// By one thread, when all slices of the bucket are reduced.
  virtual void end(std::size_t /*bucket*/) {}
  /// Whether end() lets go of gradients, so that replicas should not run ahead of each other.
  virtual bool lets_go() const { return false; }
  /// By one thread, when all buckets have ended. Waits for other workers, not for GPUs: what
  /// replicas put into their compute streams from now on sees the sums.
  virtual void join() {}
  /// Afterwards, any thread: the bucket's sums on the replica's device. Nothing: each replica's
  /// gradients are the sums.
  virtual std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const = 0;
  /// The same of one variable, where sums are not kept by bucket: of one that shards_of() names
  /// that of the replica's shard, [count].
  virtual std::optional<Tensor> sum_of(std::size_t /*variable*/, std::size_t /*replica*/) const {
    return std::nullopt;
  }

 protected:
  GivenGradients& given_;
};

/// Which replica owns what of the variable's sum; nullptr: each wants the whole.
const ReplicaShards* shards_of(const Variable& variable);

// replica_sums.cc: on CPUs, of this process.
/// Of one replica: looks for values that are not finite, and leaves all as it is. GPUs, too.
std::unique_ptr<BucketSums> kept_gradients(GivenGradients& given);
/// By ReplicaServices::ops. Each shard goes to the replica that owns it; other sums are shared by
/// all. Lets go of gradients that are summed, if there are shards.
std::unique_ptr<BucketSums> local_sums(GivenGradients& given);

// worker_sums.cc: on CPUs, of several processes.
std::unique_ptr<BucketSums> worker_sums(GivenGradients& given);
/// The same, each shard to the replica that owns it.
std::unique_ptr<BucketSums> shard_worker_sums(GivenGradients& given);

// gpu_sums.cc: in the memory of GPUs, beside the backward pass.
/// Same as local_sums(), but where values that are not finite are looked for, sums stay whole.
std::unique_ptr<BucketSums> gpu_sums(GivenGradients& given);
std::unique_ptr<BucketSums> gpu_sums_by_hosts(GivenGradients& given, PlanInUse& plan);
std::unique_ptr<BucketSums> gpu_sums_by_nccl(GivenGradients& given);

}  // namespace tutti::internal
