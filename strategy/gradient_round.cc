// One reduction of gradients.
// SPDX-License-Identifier: Apache-2.0
//
// With the canonical operation slices are added along the tree straight from the replicas'
// gradients into one result that all replicas share; other operations reduce copies in place, one
// flat buffer per replica.
#include "tutti/strategy/gradient_round.h"

#include <algorithm>
#include <cstring>

#include "tutti/core/logging.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/cross_device_ops/sparse.h"

namespace tutti::internal {

GradientRound::GradientRound(ReplicaServices& services, ReplicaMonitor& monitor, PlanInUse& plan,
                             std::span<const Variable> variables)
    : services_(services),
      monitor_(monitor),
      plan_(plan.plan),
      residuals_(plan.residuals),
      variables_(variables.begin(), variables.end()),
      num_replicas_(services.replica_devices.size()),
      on_gpus_(services.replica_devices.front().type == DeviceType::kGpu),
      // One worker's GPUs need no host for their sums.
      team_(on_gpus_ && services.num_workers() == 1 ? nullptr : services.team.get()),
      by_nccl_(on_gpus_ && team_ && team_->gpu_sums()),
      by_hosts_(on_gpus_ && team_ && !by_nccl_),
      alone_(num_replicas_ == 1 && !team_),
      canonical_(!on_gpus_ && (team_ || services.ops.name() == "canonical")),
      compression_(services.communication.compression),
      policy_(services.communication.non_finite),
      gradients_(num_replicas_, std::vector<Gradient>(variables.size())),
      buckets_(plan_->buckets.size()),
      sparse_sums_(variables.size()) {
  if (by_hosts_) {
    const std::size_t num_partials = team_->partial_sums().size();
    if (!plan.host_sums || plan.host_sums->num_partials() != num_partials) {
      plan.host_sums = std::make_shared<HostSums>(*plan_, num_partials, team_->num_workers());
    }
    host_sums_ = plan.host_sums;
  }
  std::vector<std::size_t> sizes;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const BucketPlan::Bucket& bucket = plan_->buckets[b];
    sizes.push_back(bucket.items.size());
    if (team_) {
      make_partial_sums(b);
      continue;
    }
    const Shape shape{static_cast<std::int64_t>(bucket.count)};
    const std::size_t copies = alone_ ? 0 : canonical_ ? 1 : num_replicas_;
    for (std::size_t r = 0; r < copies; ++r) {
      buckets_[b].flat.emplace_back(shape, bucket.dtype, services.replica_devices[r]);
    }
  }
  unfilled_.assign(num_replicas_, sizes);
}

std::byte* GradientRound::element(std::size_t bucket, std::size_t copy, std::size_t index) {
  BucketState& state = buckets_[bucket];
  if (team_) return state.partials[copy].data + index * size_of(state.partials[copy].dtype);
  MutableTensor& flat = state.flat[copy];
  return flat.data() + index * size_of(flat.dtype());
}

void GradientRound::put(int replica, std::size_t index, const Gradient& gradient) {
  const auto r = static_cast<std::size_t>(replica);
  const auto [bucket, item] = plan_->places[index];
  gradients_[r][index] = gradient;
  if (!on_gpus_ && !canonical_ && num_replicas_ > 1 && gradient.is_dense()) {
    stage(replica, bucket, plan_->buckets[bucket].items[item]);
  }
  const bool later = on_gpus_ && gradient.is_dense();  // all at once, by join_gpus()
  if (alone_ && policy_ != NonFinitePolicy::kIgnore && !later) check_alone(index);
  if (--unfilled_[r][bucket] > 0) return;
  if (on_gpus_ && !alone_) pack(replica, bucket);
  if (last_to_fill(bucket)) publish(bucket);
}

bool GradientRound::last_to_fill(std::size_t bucket) {
  MutexLock lock(monitor_.mutex());
  return static_cast<std::size_t>(++buckets_[bucket].num_filled) == num_replicas_;
}

void GradientRound::publish(std::size_t bucket) {
  try {
    prepare(bucket);
    if (on_gpus_ && team_) {
      start_for_workers(bucket);
    } else if (on_gpus_ && has_dense(bucket)) {
      start(bucket);
    }
  } catch (...) {
    fail_with(std::current_exception());
    return;
  }
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const bool has_slices = !on_gpus_ && has_dense(bucket);
  const bool sliceable = canonical_ || services_.ops.sliceable();
  const auto slices = cut_slices(has_slices ? plan.count : 0, size_of(plan.dtype),
                                 sliceable ? static_cast<int>(num_replicas_) : 1);
  {
    MutexLock lock(monitor_.mutex());
    for (const SliceRange& slice : slices) tasks_.push_back({bucket, slice});
    buckets_[bucket].slices_left = slices.size();
    monitor_.notify_replicas();
  }
  if (slices.empty()) bucket_is_summed(bucket);
}

void GradientRound::bucket_is_summed(std::size_t bucket) {
  if (team_) {
    try {
      give_to_workers(bucket);
    } catch (...) {
      return fail_with(std::current_exception());
    }
  }
  MutexLock lock(monitor_.mutex());
  if (++buckets_done_ == buckets_.size()) monitor_.notify_replicas();
}

void GradientRound::prepare(std::size_t bucket) {
  if (team_) count_kinds(bucket);
  for (const BucketPlan::Item& item : plan_->buckets[bucket].items) {
    buckets_[bucket].kinds.push_back(prepare_item(bucket, item));
  }
  if (!on_gpus_ && (team_ || (!canonical_ && num_replicas_ > 1))) zero_unused(bucket);
}

void GradientRound::zero_unused(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  std::vector<MutableTensor>& flat = buckets_[bucket].flat;
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const BucketPlan::Item& item = plan.items[i];
    const bool is_dense = buckets_[bucket].kinds[i] == Kind::kDense;
    const std::size_t begin = item.first + (is_dense ? item.count : 0);
    const std::size_t end = i + 1 < plan.items.size() ? plan.items[i + 1].first : plan.count;
    for (std::size_t c = 0; begin < end && c < flat.size(); ++c) {
      std::memset(element(bucket, c, begin), 0, (end - begin) * size_of(flat[c].dtype()));
    }
  }
}

GradientRound::Kind GradientRound::prepare_item(std::size_t bucket, const BucketPlan::Item& item) {
  bool any_dense = false, any_sparse = false;
  std::vector<std::size_t> without;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    const Gradient& gradient = gradients_[r][item.variable];
    any_dense = any_dense || gradient.is_dense();
    any_sparse = any_sparse || gradient.is_slices();
    if (gradient.is_none()) without.push_back(r);
  }
  if (!any_dense && !any_sparse) return Kind::kNone;
  if (!without.empty()) {
    log_warning_once(concat("Variable '", variables_[item.variable].name(),
                            "' has no gradient on replicas ", tutti::join(without),
                            " but has one on others; zeros are used there"));
  }
  if (!any_dense) {
    if (!team_) sum_sparse(item);
    return Kind::kSparse;
  }
  make_dense(item, bucket);
  return Kind::kDense;
}

void GradientRound::make_dense(const BucketPlan::Item& item, std::size_t bucket) {
  const Variable& variable = variables_[item.variable];
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    Gradient& gradient = gradients_[r][item.variable];
    if (gradient.is_dense()) continue;
    gradient = gradient.is_slices() ? gradient.to_dense()
                                    : Tensor::zeros(variable.shape(), variable.dtype(),
                                                    services_.replica_devices[r]);
    if (!canonical_) stage(static_cast<int>(r), bucket, item);
  }
}

std::vector<IndexedSlices> GradientRound::local_slices(const BucketPlan::Item& item) const {
  const Variable& variable = variables_[item.variable];
  std::vector<IndexedSlices> slices;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    const Gradient& gradient = gradients_[r][item.variable];
    if (gradient.is_slices()) {
      // Rows are sorted by the host.
      slices.push_back(on_gpus_ ? copy_to(gradient, Device{}).slices() : gradient.slices());
      continue;
    }
    slices.push_back({Tensor::zeros(variable.shape().with_dim(0, 0), variable.dtype()),
                      Tensor::zeros({0}, DType::kInt64), variable.shape()});
  }
  return slices;
}

void GradientRound::sum_sparse(const BucketPlan::Item& item) {
  const Variable& variable = variables_[item.variable];
  std::vector<IndexedSlices> slices = team_ ? slices_of_all_replicas(item) : local_slices(item);
  const Device where = on_gpus_ ? Device{} : services_.replica_devices.front();
  IndexedSlices sum = sum_slices_canonically(slices, where);
  const auto count = static_cast<std::size_t>(sum.values.num_elements());
  if (policy_ != NonFinitePolicy::kIgnore &&
      count_non_finite(variable.dtype(), sum.values.bytes().data(), count) > 0) {
    note_sparse(item, slices, sum);
    if (policy_ == NonFinitePolicy::kZero) {
      for (IndexedSlices& each : slices) each.values = without_non_finite(each.values);
      sum = sum_slices_canonically(slices, where);
      sum.values = without_non_finite(sum.values);
    }
  }
  sparse_sums_[item.variable] = std::move(sum);
}

void GradientRound::note_sparse(const BucketPlan::Item& item, std::span<const IndexedSlices> slices,
                                const IndexedSlices& sum) {
  const auto note_in = [&](const IndexedSlices& each, int replica) {
    const auto count = static_cast<std::size_t>(each.values.num_elements());
    const auto found = first_non_finite(each.values.dtype(), each.values.bytes().data(), count);
    if (!found) return false;
    const std::size_t rows = static_cast<std::size_t>(each.indices.num_elements());
    const std::size_t width = count / rows;
    const auto row =
        static_cast<std::size_t>(each.indices.host_span<std::int64_t>()[*found / width]);
    note(item, row * width + *found % width, replica);
    return true;
  };
  bool any = false;
  for (std::size_t r = 0; r < slices.size(); ++r) {
    any = note_in(slices[r], static_cast<int>(r)) || any;
  }
  if (!any) note_in(sum, NonFiniteValue::kSum);
}

void GradientRound::check_alone(std::size_t index) {
  Gradient& gradient = gradients_[0][index];
  const auto [bucket, position] = plan_->places[index];
  const BucketPlan::Item& item = plan_->buckets[bucket].items[position];
  if (gradient.is_slices()) {
    const Gradient on_host = on_gpus_ ? copy_to(gradient, Device{}) : gradient;
    const IndexedSlices slices = on_host.slices();
    const Tensor finite = without_non_finite(slices.values);
    if (finite.id() == slices.values.id()) return;
    note_sparse(item, {&slices, 1}, slices);
    if (policy_ == NonFinitePolicy::kZero) {
      const Device device = device_of(gradient);
      gradient = copy_to(IndexedSlices{finite, slices.indices, slices.dense_shape}, device);
    }
  } else if (gradient.is_dense()) {
    const Tensor dense = on_gpus_ ? gradient.dense().to(Device{}) : gradient.dense();
    const auto found = first_non_finite(dense.dtype(), dense.bytes().data(), item.count);
    if (!found) return;
    note(item, *found, 0);
    if (policy_ == NonFinitePolicy::kZero) {
      gradient = without_non_finite(dense).to(gradient.dense().device());
    }
  }
}

void GradientRound::note(const BucketPlan::Item& item, std::size_t index, int replica) {
  non_finite_.note({item.variable, static_cast<std::int64_t>(index), replica});
}

void GradientRound::work() {
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
      reduce_slice(task);
    } catch (...) {
      fail_with(std::current_exception());
      return;
    }
    {
      MutexLock lock(monitor_.mutex());
      if (--buckets_[task.bucket].slices_left > 0) continue;
    }
    bucket_is_summed(task.bucket);
  }
}

void GradientRound::join() {
  if (team_) join_workers();
  if (on_gpus_) join_gpus();
  const bool tells = policy_ == NonFinitePolicy::kError || policy_ == NonFinitePolicy::kSkip;
  if (team_ && (tells || by_nccl_)) share_findings();
}

void GradientRound::fail_with(std::exception_ptr failure) {
  MutexLock lock(monitor_.mutex());
  if (!failure_) failure_ = std::move(failure);
  monitor_.notify_replicas();
}

std::vector<Gradient> GradientRound::results(int replica) const {
  const auto r = static_cast<std::size_t>(replica);
  const Device device = services_.replica_devices[r];
  std::vector<Tensor> flat;
  for (const BucketState& bucket : buckets_) {
    if (alone_) break;
    flat.push_back(bucket.flat[canonical_ ? 0 : r].freeze().to(device));
  }
  std::vector<Gradient> gradients;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const auto [b, position] = plan_->places[i];
    const BucketPlan::Item& item = plan_->buckets[b].items[position];
    switch (buckets_[b].kinds[position]) {
      case Kind::kNone:
        gradients.emplace_back();
        break;
      case Kind::kSparse:
        gradients.push_back(on_gpus_ ? copy_to(sparse_sums_[i], device) : sparse_sums_[i]);
        break;
      case Kind::kDense:
        gradients.push_back(alone_ ? gradients_[0][i]
                                   : Gradient(flat[b]
                                                  .rows(static_cast<std::int64_t>(item.first),
                                                        static_cast<std::int64_t>(item.count))
                                                  .reshaped(variables_[i].shape())));
        break;
    }
  }
  return gradients;
}

}  // namespace tutti::internal
