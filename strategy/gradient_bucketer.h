// Sums gradients over replicas, bucket by bucket, while the backward pass still runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/strategy/bucket_plan.h"
#include "tutti/strategy/gradient_round.h"
#include "tutti/strategy/local_replica.h"

namespace tutti::internal {

/// Where the replicas of one run find the round that they are in.
class GradientExchange {
 public:
  GradientExchange(ReplicaServices& services, BucketPlans& plans, std::uint64_t step)
      : services_(services), plans_(plans), step_(step) {}
  /// The round of these variables. Throws kInvalidArgument when a replica that joined earlier gave
  /// others.
  std::shared_ptr<GradientRound> join(int replica, std::span<const Variable> variables,
                                      ReplicaMonitor& monitor);
  /// Carries out the policy for what `round` found not finite: throws, or warns once. Called by one
  /// replica, when the round is done.
  void judge(const GradientRound& round);

 private:
  ReplicaServices& services_;
  BucketPlans& plans_;
  const std::uint64_t step_;
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
  bool skips_update() const override { return skips_update_; }
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
  bool skips_update_ = false;
};

}  // namespace tutti::internal
