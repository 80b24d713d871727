// One reduction of gradients.
// SPDX-License-Identifier: Apache-2.0
//
// With the canonical operation slices are added along the tree straight from the replicas'
// gradients into one result that all replicas share; other operations reduce copies in place, one
// flat buffer per replica.
#include <algorithm>
#include <cstring>

#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/sparse.h"
#include "tutti/strategy/gradient_bucketer.h"

namespace tutti::internal {

GradientRound::GradientRound(ReplicaServices& services, ReplicaMonitor& monitor,
                             std::shared_ptr<const BucketPlan> plan,
                             std::span<const Variable> variables)
    : services_(services),
      monitor_(monitor),
      plan_(std::move(plan)),
      variables_(variables.begin(), variables.end()),
      num_replicas_(services.replica_devices.size()),
      canonical_(services.ops.name() == "canonical"),
      gradients_(num_replicas_, std::vector<Gradient>(variables.size())),
      buckets_(plan_->buckets.size()),
      sparse_sums_(variables.size()) {
  std::vector<std::size_t> sizes;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const BucketPlan::Bucket& bucket = plan_->buckets[b];
    sizes.push_back(bucket.items.size());
    const Shape shape{static_cast<std::int64_t>(bucket.count)};
    // One replica alone keeps its gradients as they are.
    const std::size_t copies = num_replicas_ == 1 ? 0 : canonical_ ? 1 : num_replicas_;
    for (std::size_t r = 0; r < copies; ++r) {
      buckets_[b].flat.emplace_back(shape, bucket.dtype, services.replica_devices[r]);
    }
  }
  unfilled_.assign(num_replicas_, sizes);
}

std::byte* GradientRound::element(std::size_t bucket, std::size_t copy, std::size_t index) {
  MutableTensor& flat = buckets_[bucket].flat[copy];
  return flat.data() + index * size_of(flat.dtype());
}

void GradientRound::put(int replica, std::size_t index, const Gradient& gradient) {
  const auto r = static_cast<std::size_t>(replica);
  const auto [bucket, item] = plan_->places[index];
  gradients_[r][index] = gradient;
  if (!canonical_ && num_replicas_ > 1 && gradient.is_dense()) {
    stage(replica, bucket, plan_->buckets[bucket].items[item]);
  }
  if (--unfilled_[r][bucket] == 0 && last_to_fill(bucket)) publish(bucket);
}

bool GradientRound::last_to_fill(std::size_t bucket) {
  MutexLock lock(monitor_.mutex());
  return static_cast<std::size_t>(++buckets_[bucket].num_filled) == num_replicas_;
}

void GradientRound::stage(int replica, std::size_t bucket, const BucketPlan::Item& item) {
  const auto r = static_cast<std::size_t>(replica);
  const auto bytes = gradients_[r][item.variable].dense().bytes();
  if (!bytes.empty()) std::memcpy(element(bucket, r, item.first), bytes.data(), bytes.size());
}

void GradientRound::publish(std::size_t bucket) {
  try {
    prepare(bucket);
  } catch (...) {
    fail_with(std::current_exception());
    return;
  }
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const bool has_dense =
      num_replicas_ > 1 && std::ranges::count(buckets_[bucket].kinds, Kind::kDense) > 0;
  const bool sliceable = canonical_ || services_.ops.sliceable();
  const auto slices = cut_slices(has_dense ? plan.count : 0, size_of(plan.dtype),
                                 sliceable ? static_cast<int>(num_replicas_) : 1);
  MutexLock lock(monitor_.mutex());
  for (const SliceRange& slice : slices) tasks_.push_back({bucket, slice});
  buckets_[bucket].slices_left = slices.size();
  if (slices.empty()) ++buckets_done_;
  monitor_.notify_replicas();
}

void GradientRound::prepare(std::size_t bucket) {
  for (const BucketPlan::Item& item : plan_->buckets[bucket].items) {
    buckets_[bucket].kinds.push_back(prepare_item(bucket, item));
  }
  if (!canonical_ && num_replicas_ > 1) zero_unused(bucket);
}

void GradientRound::zero_unused(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const std::size_t element_size = size_of(plan.dtype);
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const BucketPlan::Item& item = plan.items[i];
    const bool is_dense = buckets_[bucket].kinds[i] == Kind::kDense;
    const std::size_t begin = item.first + (is_dense ? item.count : 0);
    const std::size_t end = i + 1 < plan.items.size() ? plan.items[i + 1].first : plan.count;
    for (std::size_t r = 0; begin < end && r < num_replicas_; ++r) {
      std::memset(element(bucket, r, begin), 0, (end - begin) * element_size);
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
                            "' has no gradient on replicas ", join(without),
                            " but has one on others; zeros are used there"));
  }
  if (!any_dense) {
    sum_sparse(item);
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

void GradientRound::sum_sparse(const BucketPlan::Item& item) {
  const Variable& variable = variables_[item.variable];
  std::vector<IndexedSlices> slices;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    const Gradient& gradient = gradients_[r][item.variable];
    if (gradient.is_slices()) {
      slices.push_back(gradient.slices());
      continue;
    }
    slices.push_back({Tensor::zeros(variable.shape().with_dim(0, 0), variable.dtype()),
                      Tensor::zeros({0}, DType::kInt64), variable.shape()});
  }
  sparse_sums_[item.variable] = sum_slices_canonically(slices, services_.replica_devices.front());
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
      reduce_slice(task);
    } catch (...) {
      fail_with(std::current_exception());
      return;
    }
    MutexLock lock(monitor_.mutex());
    if (--buckets_[task.bucket].slices_left > 0) continue;
    if (++buckets_done_ == buckets_.size()) monitor_.notify_replicas();
  }
}

void GradientRound::reduce_slice(const Task& task) {
  if (canonical_) return reduce_in_tree_order(task);
  std::vector<ReplicaBuffer> buffers;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    buffers.push_back({element(task.bucket, r, task.slice.begin), task.slice.end - task.slice.begin,
                       plan_->buckets[task.bucket].dtype, services_.replica_devices[r]});
  }
  if (services_.ops.sliceable()) {
    services_.ops.all_reduce_in_place(ReduceOp::kSum, buffers, services_.communication);
    return;
  }
  MutexLock lock(services_.ops_mutex);
  services_.ops.all_reduce_in_place(ReduceOp::kSum, buffers, services_.communication);
}

void GradientRound::reduce_in_tree_order(const Task& task) {
  const BucketPlan::Bucket& bucket = plan_->buckets[task.bucket];
  const std::size_t element_size = size_of(bucket.dtype);
  std::vector<const std::byte*> inputs(num_replicas_);
  for (std::size_t i = 0; i < bucket.items.size(); ++i) {
    const BucketPlan::Item& item = bucket.items[i];
    const std::size_t begin = std::max(task.slice.begin, item.first);
    const std::size_t end = std::min(task.slice.end, item.first + item.count);
    if (begin >= end || buckets_[task.bucket].kinds[i] != Kind::kDense) continue;
    for (std::size_t r = 0; r < num_replicas_; ++r) {
      inputs[r] =
          gradients_[r][item.variable].dense().bytes().data() + (begin - item.first) * element_size;
    }
    reduce_along_tree(ReduceOp::kSum, bucket.dtype, inputs, element(task.bucket, 0, begin),
                      end - begin);
  }
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
    if (num_replicas_ == 1) break;
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
        gradients.push_back(sparse_sums_[i]);
        break;
      case Kind::kDense:
        gradients.push_back(num_replicas_ == 1
                                ? gradients_[0][i]
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
