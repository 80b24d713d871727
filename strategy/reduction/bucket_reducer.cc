// One reduction of gradients: buckets are filled, published, reduced and done.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/bucket_reducer.h"

#include <algorithm>

#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {
namespace {

/// The one place that decides how gradients are summed.
std::unique_ptr<BucketSums> make_sums(GivenGradients& given, PlanInUse& plan) {
  const ReplicaServices& services = given.services;
  const bool on_gpus = services.replica_devices.front().type == DeviceType::kGpu;
  const WorkerTeam* const team = services.num_workers() == 1 ? nullptr : services.team.get();
  if (!team && given.num_replicas == 1) return kept_gradients(given);
  if (on_gpus && !team) return gpu_sums(given);
  if (on_gpus) return team->gpu_sums() ? gpu_sums_by_nccl(given) : gpu_sums_by_hosts(given, plan);
  if (!team) return local_sums(given);
  const bool any_shards = std::ranges::any_of(given.variables, shards_of);
  return any_shards ? shard_worker_sums(given) : worker_sums(given);
}

}  // namespace

BucketReducer::BucketReducer(ReplicaServices& services, ReplicaMonitor& monitor, PlanInUse& plan,
                             std::span<const Variable> variables)
    : monitor_(monitor),
      given_(services, plan, variables),
      sums_(make_sums(given_, plan)),
      progress_(given_.plan->buckets.size()),
      num_filled_(given_.num_replicas) {
  unfilled_.reserve(given_.num_replicas * progress_.size());
  for (std::size_t r = 0; r < given_.num_replicas; ++r) {
    for (const BucketPlan::Bucket& bucket : given_.plan->buckets) {
      unfilled_.push_back(bucket.items.size());
    }
  }
}

void BucketReducer::put(int replica, std::size_t index, const Gradient& gradient) {
  const auto r = static_cast<std::size_t>(replica);
  const std::size_t bucket = given_.plan->places[index].bucket;
  given_.put(r, index, gradient);
  sums_->given(r, index);
  if (--unfilled_[r * given_.plan->buckets.size() + bucket] > 0) return;
  sums_->filled(r, bucket);
  if (last_to_fill(r, bucket)) publish(bucket);
}

bool BucketReducer::last_to_fill(std::size_t replica, std::size_t bucket) {
  MutexLock lock(monitor_.mutex());
  ++num_filled_[replica];
  return ++progress_[bucket].num_filled == given_.num_replicas;
}

void BucketReducer::publish(std::size_t bucket) {
  std::vector<SliceRange> slices;
  try {
    const std::vector<BucketPlan::Item>& items = given_.bucket(bucket).items;
    for (const BucketPlan::Item& item : items) given_.unify(item.variable);
    slices = sums_->begin(bucket);
    for (const BucketPlan::Item& item : items) {
      if (given_.kinds[item.variable] != GradientKind::kSparse) continue;
      sums_->sum_slices(item.variable);
    }
  } catch (...) {
    fail_with(std::current_exception());
    return;
  }
  {
    MutexLock lock(monitor_.mutex());
    for (const SliceRange& slice : slices) tasks_.push_back({bucket, slice});
    progress_[bucket].slices_left = slices.size();
    monitor_.notify_replicas();
  }
  if (slices.empty()) end_bucket(bucket);
}

void BucketReducer::end_bucket(std::size_t bucket) {
  try {
    sums_->end(bucket);
  } catch (...) {
    return fail_with(std::current_exception());
  }
  MutexLock lock(monitor_.mutex());
  if (++buckets_done_ == progress_.size() || keeps_pace()) monitor_.notify_replicas();
}

void BucketReducer::work() {
  for (;;) {
    Task task;
    {
      MutexLock lock(monitor_.mutex());
      if (!has_task()) return;
      task = tasks_[next_task_++];
    }
    try {
      const TraceSpan span("reduce", "communication",
                           {{"bucket", static_cast<std::int64_t>(task.bucket)},
                            {"first", static_cast<std::int64_t>(task.slice.begin)},
                            {"end", static_cast<std::int64_t>(task.slice.end)}});
      sums_->reduce(task.bucket, task.slice);
    } catch (...) {
      fail_with(std::current_exception());
      return;
    }
    {
      MutexLock lock(monitor_.mutex());
      if (--progress_[task.bucket].slices_left > 0) continue;
    }
    end_bucket(task.bucket);
  }
}

void BucketReducer::fail_with(std::exception_ptr failure) {
  MutexLock lock(monitor_.mutex());
  if (!failure_) failure_ = std::move(failure);
  monitor_.notify_replicas();
}

std::vector<Gradient> BucketReducer::results(int replica) const {
  const auto r = static_cast<std::size_t>(replica);
  const Device device = given_.services.replica_devices[r];
  std::vector<std::optional<Tensor>> sums;
  for (std::size_t b = 0; b < given_.plan->buckets.size(); ++b) sums.push_back(sums_->sum(b, r));
  std::vector<Gradient> gradients;
  for (std::size_t i = 0; i < given_.variables.size(); ++i) {
    const std::optional<Tensor>& sum = sums[given_.plan->places[i].bucket];
    const BucketPlan::Item& item = given_.item_of(i);
    switch (given_.kinds[i]) {
      case GradientKind::kNone:
        gradients.emplace_back();
        break;
      case GradientKind::kSparse:
        gradients.push_back(device.type == DeviceType::kGpu ? copy_to(given_.sparse_sums[i], device)
                                                            : given_.sparse_sums[i]);
        break;
      case GradientKind::kDense:
        if (std::optional<Tensor> own = sums_->sum_of(i, r)) {
          gradients.emplace_back(*std::move(own));
          break;
        }
        gradients.push_back(sum ? Gradient(sum->detached_rows(static_cast<std::int64_t>(item.first),
                                                              static_cast<std::int64_t>(item.count))
                                               .detached_reshape(given_.variables[i].shape()))
                                : given_.of(r, i));
        break;
    }
  }
  return gradients;
}

std::vector<Variable> BucketReducer::sharded() const {
  std::vector<Variable> sharded(given_.variables.size());
  for (std::size_t i = 0; i < sharded.size(); ++i) {
    if (shards_of(given_.variables[i]) && sums_->sum_of(i, 0)) sharded[i] = given_.variables[i];
  }
  const auto is_sharded = [](const Variable& variable) { return variable.defined(); };
  return std::ranges::any_of(sharded, is_sharded) ? sharded : std::vector<Variable>();
}

}  // namespace tutti::internal
