// The part of a global dataset that one of several workers reads.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input_parts.h"

#include <utility>

#include "tutti/strategy/rebatch.h"

namespace tutti::internal {
namespace {

int num_local(const InputPlan& plan) { return static_cast<int>(plan.replica_devices.size()); }

bool shards(const InputPlan& plan) {
  return plan.cut == InputCut::kSplit && (plan.options.sharding_rule == ShardingRule::kTensorFlow ||
                                          plan.options.auto_shard_policy.has_value());
}

void require_numbers(const InputPlan& plan) {
  const int replicas = plan.num_replicas_in_sync;
  if (num_local(plan) < 1 || plan.num_workers < 1 || plan.worker < 0 ||
      plan.worker >= plan.num_workers || plan.first_replica < 0 ||
      plan.first_replica + num_local(plan) > replicas) {
    fail(ErrorCode::kInvalidArgument,
         "distribute_dataset: expected 0 <= worker < workers and local replicas among all, got "
         "worker ",
         plan.worker, " of ", plan.num_workers, ", replicas ", plan.first_replica, " .. ",
         plan.first_replica + num_local(plan) - 1, " of ", replicas);
  }
  if (!plan.weights.empty() && std::ssize(plan.weights) != replicas) {
    fail(ErrorCode::kInvalidArgument,
         "distribute_dataset: expected a weight for each of the replicas of all workers, ",
         replicas, ", or none, got ", plan.weights.size());
  }
  if (!plan.max_rows.empty() && std::ssize(plan.max_rows) != replicas) {
    fail(ErrorCode::kInvalidArgument,
         "distribute_dataset: expected a limit of rows for each of the replicas of all workers, ",
         replicas, ", or none, got ", plan.max_rows.size());
  }
}

// tf's sizes take all workers to be alike.
void require_equal_workers(const InputPlan& plan) {
  const int local = num_local(plan);
  if (plan.num_replicas_in_sync != local * plan.num_workers ||
      plan.first_replica != local * plan.worker || !plan.weights.empty() || plan.current_weights ||
      !plan.max_rows.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "distribute_dataset: ShardingRule::kTensorFlow expected as many replicas on every worker, "
         "with equal shares, got ",
         local, " of ", plan.num_replicas_in_sync, " on one of ", plan.num_workers, " workers, ",
         plan.weights.size(), " weights, ", plan.max_rows.size(),
         " limits; try ShardingRule::kCanonical");
  }
}

InputPart sharded_part(const Dataset& dataset, const InputPlan& plan) {
  require_equal_workers(plan);
  AutoShardPolicy policy = plan.options.auto_shard_policy.value_or(AutoShardPolicy::kAuto);
  // One worker shares nothing out, so FILE needs no files: it names the cut alone.
  if (plan.num_workers > 1 || policy == AutoShardPolicy::kAuto) {
    policy = choose_auto_shard(dataset, plan.num_workers, policy).policy;
  }
  const std::optional<std::int64_t> batch = dataset.batch_size();
  InputPart part{
      .dataset = dataset, .cut = InputCut::kWhole, .whole = dataset, .global_batch_size = batch};
  if (policy == AutoShardPolicy::kData) {
    // Rotated sizes would lose and repeat rows here: they belong to workers that read other rows.
    part.dataset = auto_shard(rebatch_evenly(dataset, plan.num_replicas_in_sync), plan.num_workers,
                              plan.worker, policy);
    part.steps = dataset.cardinality();
    return part;
  }
  const Dataset own = auto_shard(dataset, plan.num_workers, plan.worker, policy);
  part.dataset = batch ? rebatch(own, batch_sizes_for_worker(*batch, plan.num_workers,
                                                             num_local(plan), plan.worker))
                       : rebatch_evenly(own, plan.num_replicas_in_sync);
  return part;
}

InputPart unsharded_part(const Dataset& dataset, const InputPlan& plan) {
  InputPart part{.dataset = dataset, .cut = plan.cut, .whole = dataset};
  part.steps = dataset.cardinality();
  part.global_batch_size = dataset.batch_size();
  if (plan.cut == InputCut::kSplit) return part;
  if (part.steps && *part.steps != kInfinite) {
    part.steps = (*part.steps + num_local(plan) - 1) / num_local(plan);
    // Other workers may have more.
    if (plan.num_workers > 1) part.steps = std::nullopt;
  }
  if (part.global_batch_size) *part.global_batch_size *= plan.num_replicas_in_sync;
  return part;
}

// What is not known to be single examples is taken for batches.
void require_batches(const Dataset& dataset) {
  if (dataset.source().batch_depth() != 0) return;
  fail(ErrorCode::kInvalidArgument,
       "distribute_dataset: the dataset is not batched; expected elements that are global batches, "
       "got single examples; try dataset.batch(global_batch_size), after unbatch() where each "
       "already holds many rows");
}

}  // namespace

InputPart part_of_worker(const Dataset& dataset, InputPlan& plan) {
  if (plan.num_replicas_in_sync == 0) plan.num_replicas_in_sync = num_local(plan);
  require_numbers(plan);
  if (plan.cut == InputCut::kSplit) require_batches(dataset);
  const bool own_parts = shards(plan) || plan.cut == InputCut::kWhole;
  if (plan.num_workers > 1 && own_parts && !plan.rows_of_workers) {
    fail(ErrorCode::kFailedPrecondition,
         "distribute_dataset: workers that read parts of their own must agree when the data ends; "
         "expected InputPlan::rows_of_workers, got none");
  }
  return shards(plan) ? sharded_part(dataset, plan) : unsharded_part(dataset, plan);
}

}  // namespace tutti::internal
