// Buckets in the memory of GPUs: packed by each replica, reduced beside the backward pass.
// SPDX-License-Identifier: Apache-2.0
//
// Nothing here waits for a GPU, unless values that are not finite are to be looked for: then the
// host reads a number of each bucket, all at once, and, if there are some, the gradients
// themselves.
#include <algorithm>

#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/gpu/gpu_elements.h"
#include "tutti/strategy/gradient_round.h"
#include "tutti/tensor/gpu/gpu_device.h"

namespace tutti::internal {
namespace {

/// Which of the tensors, all on `device`, have elements that are not finite.
std::vector<std::size_t> indices_of_non_finite(Device device, std::span<const Tensor> tensors) {
  if (tensors.empty()) return {};
  const MutableTensor counts({static_cast<std::int64_t>(tensors.size())}, DType::kInt64, device);
  GpuDevice::of(device).count_non_finite(tensors, counts);
  const Tensor on_host = counts.freeze().to(Device{});
  const auto numbers = on_host.host_span<std::int64_t>();
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] > 0) indices.push_back(i);
  }
  return indices;
}

}  // namespace

bool GradientRound::has_dense(std::size_t bucket) const {
  return !alone_ && std::ranges::count(buckets_[bucket].kinds, Kind::kDense) > 0;
}

/// The replica's dense gradients of the bucket, in one launch of its compute stream; zeros between
/// and where it has none.
void GradientRound::pack(int replica, std::size_t bucket) {
  const auto r = static_cast<std::size_t>(replica);
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const MutableTensor& flat = buckets_[bucket].flat[r];
  auto* const begin = static_cast<std::byte*>(flat.address());
  std::vector<DeviceCopy> copies;
  std::size_t num_covered = 0;
  for (const BucketPlan::Item& item : plan.items) {
    Gradient& gradient = gradients_[r][item.variable];
    if (!gradient.is_dense()) continue;
    gradient = gradient.dense().to(flat.device());
    if (item.count == 0) continue;
    copies.push_back({begin + item.first * size_of(plan.dtype), gradient.dense().address(),
                      item.count * size_of(plan.dtype)});
    num_covered += item.count;
  }
  if (num_covered < plan.count) {
    GpuDevice::of(flat.device()).with_context([&](DeviceContext& context) {
      context.clear(begin, flat.num_bytes(), StreamId::kCompute);
    });
  }
  copy_many_on_gpu(flat.device(), copies);
  if (!buckets_[bucket].wide.empty()) {
    cast_on_gpu(buffer_of(flat), buffer_of(buckets_[bucket].wide[r]));
  }
}

std::vector<ReplicaBuffer> GradientRound::flat_buffers(std::size_t bucket) const {
  std::vector<ReplicaBuffer> buffers;
  for (const MutableTensor& flat : buckets_[bucket].flat) buffers.push_back(buffer_of(flat));
  return buffers;
}

void GradientRound::start(std::size_t bucket) {
  const TraceSpan span("reduce", "communication",
                       {{"bucket", static_cast<std::int64_t>(bucket)},
                        {"first", std::int64_t{0}},
                        {"end", static_cast<std::int64_t>(plan_->buckets[bucket].count)}});
  MutexLock lock(services_.ops_mutex);
  buckets_[bucket].pending = services_.ops.start_all_reduce_in_place(
      ReduceOp::kSum, flat_buffers(bucket), services_.communication);
}

void GradientRound::join_gpus() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].pending.join();
    join_worker_gpus(b);
  }
  // The hosts have looked at what went through their hands.
  if (policy_ != NonFinitePolicy::kIgnore && !by_hosts_) search_on_gpus();
}

void GradientRound::search_on_gpus() {
  if (alone_) return search_alone_on_gpu();
  std::vector<std::size_t> dense;
  std::vector<Tensor> sums;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!has_dense(b)) continue;
    dense.push_back(b);
    // Infinities and NaNs survive every sum, so the sum alone is searched.
    sums.push_back(buckets_[b].flat[0].freeze());
  }
  for (const std::size_t i : indices_of_non_finite(services_.replica_devices.front(), sums)) {
    note_on_gpus(dense[i]);
    if (policy_ == NonFinitePolicy::kZero) repair_on_gpus(dense[i]);
  }
}

/// The gradients of the only replica.
void GradientRound::search_alone_on_gpu() {
  const Device device = services_.replica_devices.front();
  std::vector<std::size_t> dense;
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!gradients_[0][i].is_dense()) continue;
    dense.push_back(i);
    values.push_back(gradients_[0][i].dense().to(device));
  }
  for (const std::size_t i : indices_of_non_finite(device, values)) check_alone(dense[i]);
}

void GradientRound::note_on_gpus(std::size_t bucket) {
  const Tensor sums = buckets_[bucket].flat[0].freeze().to(Device{});
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  for (const BucketPlan::Item& item : plan.items) {
    const auto sum = sums.bytes().subspan(item.first * size_of(plan.dtype));
    const auto in_sum = first_non_finite(plan.dtype, sum.data(), item.count);
    bool any = false;
    for (std::size_t r = 0; r < num_replicas_; ++r) {
      const Gradient& gradient = gradients_[r][item.variable];
      if (!gradient.is_dense()) continue;
      const Tensor on_host = gradient.dense().to(Device{});
      const auto found = first_non_finite(plan.dtype, on_host.bytes().data(), item.count);
      if (!found) continue;
      note(item, *found, first_replica() + static_cast<int>(r));
      any = true;
    }
    if (in_sum && !any) note(item, *in_sum, NonFiniteValue::kSum);
  }
}

/// The sum once more, of gradients with zeros where they are not finite.
void GradientRound::repair_on_gpus(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  for (const BucketPlan::Item& item : plan.items) {
    for (std::size_t r = 0; r < num_replicas_; ++r) {
      Gradient& gradient = gradients_[r][item.variable];
      if (gradient.is_dense()) gradient = without_non_finite(gradient.dense().to(Device{}));
    }
  }
  for (std::size_t r = 0; r < num_replicas_; ++r) pack(static_cast<int>(r), bucket);
  if (by_nccl_) {
    buckets_[bucket].copied = mark_on_gpus(StreamId::kCompute);
    sum_by_nccl(bucket);
    join_worker_gpus(bucket);
  } else {
    start(bucket);
    buckets_[bucket].pending.join();
  }
  // Finite values may have an infinite sum.
  const Tensor sums = buckets_[bucket].flat[0].freeze().to(Device{});
  const Tensor finite = without_non_finite(sums);
  if (finite.id() == sums.id()) return;
  for (MutableTensor& flat : buckets_[bucket].flat) flat.assign(finite.to(flat.device()));
}

}  // namespace tutti::internal
