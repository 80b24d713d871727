// Sums gradients over replicas, bucket by bucket, while the backward pass still runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/strategy/bucket_plan.h"
#include "tutti/strategy/local_replica.h"

namespace tutti::internal {

/// One reduction of a list of gradients, shared by the replicas of a run. A bucket that all
/// replicas have filled is published as slices, which any replica computes.
class GradientRound {
 public:
  struct Task {
    std::size_t bucket = 0;
    SliceRange slice;
  };

  GradientRound(ReplicaServices& services, ReplicaMonitor& monitor,
                std::shared_ptr<const BucketPlan> plan, std::span<const Variable> variables);

  const BucketPlan& plan() const { return *plan_; }
  const Variable& variable(std::size_t index) const { return variables_[index]; }

  /// Replica `replica` gives its gradient of variable `index`; when that fills its part of a
  /// bucket, and it is the last one to do so, the bucket is published.
  void put(int replica, std::size_t index, const Gradient& gradient);
  /// Computes slices until none is there. A failure is kept for wait-and-rethrow by the leader.
  void work();

  // With the monitor's mutex held:
  bool has_task() const { return next_task_ < tasks_.size() && !failure_; }
  bool is_finished() const { return failure_ || buckets_done_ == buckets_.size(); }
  std::exception_ptr failure() const { return failure_; }
  /// How many replicas joined: guarded by the monitor's mutex, used by GradientExchange.
  std::vector<int> joined;

  /// The sums, on the device of `replica`. After all buckets are done.
  std::vector<Gradient> results(int replica) const;

 private:
  enum class Kind { kNone, kDense, kSparse };
  struct BucketState {
    int num_filled = 0;
    std::size_t slices_left = 0;
    std::vector<Kind> kinds;  // per item, known once published
    std::vector<MutableTensor>
        flat;  // canonical: one, the result; else per replica, reduced in place
  };

  bool last_to_fill(std::size_t bucket);
  void publish(std::size_t bucket);
  void prepare(std::size_t bucket);
  /// What no gradient was staged into is reduced, too: padding and variables without dense
  /// gradient.
  void zero_unused(std::size_t bucket);
  Kind prepare_item(std::size_t bucket, const BucketPlan::Item& item);
  void stage(int replica, std::size_t bucket, const BucketPlan::Item& item);
  void make_dense(const BucketPlan::Item& item, std::size_t bucket);
  void sum_sparse(const BucketPlan::Item& item);
  void reduce_slice(const Task& task);
  void reduce_in_tree_order(const Task& task);
  void fail_with(std::exception_ptr failure);
  std::byte* element(std::size_t bucket, std::size_t copy, std::size_t index);

  ReplicaServices& services_;
  ReplicaMonitor& monitor_;
  const std::shared_ptr<const BucketPlan> plan_;
  const std::vector<Variable> variables_;
  const std::size_t num_replicas_;
  const bool canonical_;  // added straight from the gradients into one result
  // gradients_[replica][variable]: written by the replica until it has filled the bucket, then by
  // the publisher, then read by all.
  std::vector<std::vector<Gradient>> gradients_;
  std::vector<std::vector<std::size_t>> unfilled_;  // [replica][bucket]; the replica's own
  std::vector<BucketState> buckets_;
  std::vector<Gradient> sparse_sums_;  // per variable
  // Guarded by monitor_.mutex():
  std::vector<Task> tasks_;
  std::size_t next_task_ = 0;
  std::size_t buckets_done_ = 0;
  std::exception_ptr failure_;
};

/// Where the replicas of one run find the round that they are in.
class GradientExchange {
 public:
  GradientExchange(ReplicaServices& services, BucketPlans& plans)
      : services_(services), plans_(plans) {}
  /// The round of these variables. Throws kInvalidArgument when a replica that joined earlier gave
  /// others.
  std::shared_ptr<GradientRound> join(int replica, std::span<const Variable> variables,
                                      ReplicaMonitor& monitor);

 private:
  ReplicaServices& services_;
  BucketPlans& plans_;
  std::shared_ptr<GradientRound> round_;
};

/// The GradientReducer of one replica.
class GradientBucketer final : public GradientReducer, private IdleWork {
 public:
  GradientBucketer(LocalReplicaContext& context, GradientExchange& exchange)
      : context_(context), exchange_(exchange) {}

  void begin(std::span<const Variable> variables) override;
  void ready(std::size_t index, const Gradient& gradient) override;
  std::vector<Gradient> finish() override;
  void updates_done() override;

 private:
  bool available() override { return round_->has_task(); }
  void work() override { round_->work(); }
  void finish_round();
  MeetingHeader header(MeetingKind kind) const;

  LocalReplicaContext& context_;
  GradientExchange& exchange_;
  std::shared_ptr<GradientRound> round_;
  std::vector<bool> given_;  // per variable
};

}  // namespace tutti::internal
