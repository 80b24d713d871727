// GradientReducer of a replica: sums gradients over all replicas during the backward pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "strategy/reduction/bucket_plan.h"
#include "strategy/replicas/local_replica.h"
#include "strategy/replicas/rendezvous.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::internal {

class BucketReducer;

/// State through which the replicas of one run take part in a shared reduction.
class GradientExchange {
 public:
  GradientExchange(ReplicaServices& services, BucketPlans& plans, ReplicaMonitor& monitor,
                   std::uint64_t step)
      : services_(services), plans_(plans), monitor_(monitor), step_(step) {}
  /// Returns the reducer for these variables. Throws kInvalidArgument if a replica that joined
  /// earlier passed different variables.
  std::shared_ptr<BucketReducer> join(int replica, std::span<const Variable> variables);
  /// Applies the policy for non-finite values: throws, or warns once. One replica calls it, after
  /// the reduction.
  void judge(const BucketReducer& buckets);

 private:
  ReplicaServices& services_;
  BucketPlans& plans_;
  ReplicaMonitor& monitor_;
  const std::uint64_t step_;
  std::shared_ptr<BucketReducer> buckets_ TUTTI_GUARDED_BY(monitor_.mutex());
  std::vector<int> joined_ TUTTI_GUARDED_BY(monitor_.mutex());  // replicas that joined buckets_
};

/// Reducer of one replica: joins reductions, contributes gradients, helps to reduce slices, and
/// waits for unfinished sums.
class ReplicaReducer final : public GradientReducer, private IdleWork {
 public:
  ReplicaReducer(LocalReplicaContext& context, GradientExchange& exchange)
      : context_(context), exchange_(exchange) {}

  void note_optimizer(const std::string& name, double learning_rate,
                      const std::string& settings) override;
  void begin(std::span<const Variable> variables) override;
  void ready(std::size_t index, const Gradient& gradient) override;
  std::vector<Gradient> finish() override;
  bool skips_update() const override { return skips_update_; }
  bool gives_shards() const override { return !sharded_.empty(); }
  Gradient whole(std::size_t index, const Gradient& gradient) override;
  void require_equal(std::span<const Variable> variables,
                     std::span<const Gradient> gradients) override;
  void updates_done() override;

 private:
  bool available() override;
  void work() override;
  void finish_buckets();
  /// Waits, reducing slices, while this replica is ahead of the others.
  void wait_for_slower_replicas();

  LocalReplicaContext& context_;
  GradientExchange& exchange_;
  std::shared_ptr<BucketReducer> buckets_;
  std::vector<bool> given_;        // per variable: true after ready()
  std::vector<Variable> sharded_;  // BucketReducer::sharded() of the last finish()
  bool skips_update_ = false;
};

}  // namespace tutti::internal
