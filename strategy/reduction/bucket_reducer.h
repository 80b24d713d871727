// One reduction of a list of gradients, shared by the replicas of a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "strategy/reduction/bucket_sums.h"
#include "strategy/replicas/rendezvous.h"

namespace tutti::internal {

/// Replicas put their gradients here. A bucket that all of them have filled is published: as
/// slices, which any replica reduces while it waits, or as work for GPUs (bucket_sums.h).
class BucketReducer {
 public:
  BucketReducer(ReplicaServices& services, ReplicaMonitor& monitor, PlanInUse& plan,
                std::span<const Variable> variables);

  const BucketPlan& plan() const { return *given_.plan; }
  const Variable& variable(std::size_t index) const { return given_.variables[index]; }

  /// Replica `replica` gives its gradient of variable `index`; when that fills its part of a
  /// bucket, and it is the last one to do so, the bucket is published.
  void put(int replica, std::size_t index, const Gradient& gradient);
  /// Reduces slices until none is there. A failure is kept for wait-and-rethrow by the leader.
  void work();
  /// BucketSums::join(), after all buckets are done, by one replica.
  void join() { sums_->join(); }
  /// What was found not finite, under every policy but kIgnore. After join().
  const std::optional<NonFiniteValue>& non_finite() const { return given_.non_finite.lowest(); }
  /// The sums, on the device of `replica`. After join().
  std::vector<Gradient> results(int replica) const;
  /// The variables of which results() has shards; undefined in place of others. Empty: of none.
  std::vector<Variable> sharded() const;

  /// Whether replicas should keep pace, lest gradients that wait for others fill the memory.
  bool keeps_pace() const { return sums_->lets_go(); }
  /// Whether the replica has filled more buckets that are not done than it should.
  bool is_ahead(int replica) const TUTTI_REQUIRES(monitor_.mutex()) {
    constexpr std::size_t kMostAhead = 1;
    return num_filled_[static_cast<std::size_t>(replica)] > buckets_done_ + kMostAhead && !failure_;
  }
  bool has_task() const TUTTI_REQUIRES(monitor_.mutex()) {
    return next_task_ < tasks_.size() && !failure_;
  }
  bool is_finished() const TUTTI_REQUIRES(monitor_.mutex()) {
    return failure_ || buckets_done_ == progress_.size();
  }
  std::exception_ptr failure() const TUTTI_REQUIRES(monitor_.mutex()) { return failure_; }
  /// For conditions, which are called with the monitor's mutex held.
  void assert_held() const TUTTI_THREAD_ANNOTATION(assert_capability(monitor_.mutex())) {}

 private:
  struct Task {
    std::size_t bucket = 0;
    SliceRange slice;
  };
  struct Progress {
    std::size_t num_filled = 0;  // by how many replicas
    std::size_t slices_left = 0;
  };

  bool last_to_fill(std::size_t replica, std::size_t bucket);
  void publish(std::size_t bucket);
  void end_bucket(std::size_t bucket);
  void fail_with(std::exception_ptr failure);

  ReplicaMonitor& monitor_;
  GivenGradients given_;
  const std::unique_ptr<BucketSums> sums_;
  std::vector<std::size_t> unfilled_;  // per replica and bucket; the replica's own
  std::vector<Progress> progress_ TUTTI_GUARDED_BY(monitor_.mutex());       // per bucket
  std::vector<std::size_t> num_filled_ TUTTI_GUARDED_BY(monitor_.mutex());  // per replica
  std::vector<Task> tasks_ TUTTI_GUARDED_BY(monitor_.mutex());
  std::size_t next_task_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  std::size_t buckets_done_ TUTTI_GUARDED_BY(monitor_.mutex()) = 0;
  std::exception_ptr failure_ TUTTI_GUARDED_BY(monitor_.mutex());
};

}  // namespace tutti::internal
