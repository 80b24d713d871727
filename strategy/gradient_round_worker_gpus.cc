// Buckets in the memory of GPUs that are summed over workers, too.
// SPDX-License-Identifier: Apache-2.0
//
// *By the hosts*: each bucket's partial sums are made by the GPUs and copied to pinned memory while
// the backward pass goes on; the host waits for these copies alone (events), gives them to the
// other workers like those of CPUs, and has the result copied back to every GPU.
// *By NCCL*: the counters go from host to host; when those of all buckets are there, all workers
// have come to the end of their backward pass, so none waits in NCCL for one that has failed. Then
// the sums are put into the streams, each behind its own gradients.
#include <algorithm>
#include <cstring>

#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/cross_device_ops_access.h"
#include "tutti/cross_device_ops/gpu/gpu_elements.h"
#include "tutti/cross_device_ops/gpu/host_exchange.h"
#include "tutti/strategy/gradient_round.h"
#include "tutti/tensor/gpu/gpu_device.h"
#include "tutti/tensor/gpu/peer_work.h"

namespace tutti::internal {

/// Buffers on the GPUs: what is packed, and, where that is to be rounded once only, float32.
void GradientRound::make_gpu_buffers(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const Shape shape{static_cast<std::int64_t>(plan.count)};
  const DType wide = WorkerTeam::sum_dtype(plan.dtype);
  const bool by_nccl_alone =
      by_nccl_ && team_->gpu_sums()->supports(ReduceOp::kSum, plan.dtype, DeviceType::kGpu);
  BucketState& state = buckets_[bucket];
  for (const Device& device : services_.replica_devices) {
    state.flat.emplace_back(shape, plan.dtype, device);
    if (wide != plan.dtype && !by_nccl_alone) state.wide.emplace_back(shape, wide, device);
  }
  if (by_nccl_) {
    state.counters.resize(plan_->num_counters(bucket, team_->num_workers()));
    state.partials.emplace_back(std::span(state.counters));
  } else {
    state.partials = host_sums_->bucket(bucket).partials;
  }
}

/// The buffers that are summed, as part of the bucket's work.
std::vector<ReplicaBuffer> GradientRound::summed_buffers(std::size_t bucket) const {
  const BucketState& state = buckets_[bucket];
  std::vector<ReplicaBuffer> buffers;
  for (const MutableTensor& each : state.wide.empty() ? state.flat : state.wide) {
    buffers.push_back(buffer_of(each));
    buffers.back().work = state.work.get();
  }
  return buffers;
}

std::vector<GradientRound::Event> GradientRound::mark_on_gpus(StreamId stream) const {
  std::vector<Event> events;
  for (const Device& device : services_.replica_devices) {
    events.push_back(GpuDevice::of(device).with_context(
        [&](DeviceContext& context) { return context.record(stream); }));
  }
  return events;
}

void GradientRound::wait_for(const std::vector<Event>& events) const {
  for (std::size_t r = 0; r < events.size(); ++r) {
    GpuDevice::of(services_.replica_devices[r]).peers().wait(*events[r]);
  }
}

/// All replicas have packed the bucket.
void GradientRound::start_for_workers(std::size_t bucket) {
  if (by_nccl_) {
    buckets_[bucket].copied = mark_on_gpus(StreamId::kCompute);
  } else {
    start_partial_sums(bucket);
  }
}

void GradientRound::start_partial_sums(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  HostSums::Bucket& host = host_sums_->bucket(bucket);
  state.work.reset();
  state.work = std::make_unique<DeviceWork>(services_.replica_devices);
  // The step before may still copy its result from there.
  for (const Device& device : services_.replica_devices) {
    for (const Event& copy : host.copies) state.work->wait(device, *copy);
  }
  std::vector<std::byte*> outputs;
  for (const Elements& partial : host.partials) outputs.push_back(partial.data);
  sums_to_host(ReduceOp::kSum, summed_buffers(bucket), team_->partial_sums(), outputs);
  state.copied = mark_on_gpus(StreamId::kCommunication);
  host.copies = state.copied;
}

/// Whether the partial sums are on the host.
bool GradientRound::is_copied(std::size_t bucket) const {
  return std::ranges::all_of(buckets_[bucket].copied,
                             [](const Event& copy) { return copy->is_done(); });
}

/// Zeros stand for gradients that are not finite before anything of them is given away.
void GradientRound::clear_partial_sums(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const auto is_finite = [&](const Elements& partial) {
    return count_non_finite(partial.dtype, partial.data, plan.count) == 0;
  };
  if (std::ranges::all_of(buckets_[bucket].partials, is_finite)) return;
  for (const BucketPlan::Item& item : plan.items) {
    for (std::size_t r = 0; r < num_replicas_; ++r) {
      Gradient& gradient = gradients_[r][item.variable];
      if (!gradient.is_dense()) continue;
      const Tensor on_host = gradient.dense().to(Device{});
      const auto found = first_non_finite(plan.dtype, on_host.bytes().data(), item.count);
      if (!found) continue;
      note(item, *found, first_replica() + static_cast<int>(r));
      gradient = without_non_finite(on_host);
    }
  }
  repeat_partial_sums(bucket);
}

void GradientRound::repeat_partial_sums(std::size_t bucket) {
  for (std::size_t r = 0; r < num_replicas_; ++r) pack(static_cast<int>(r), bucket);
  start_partial_sums(bucket);
  wait_for(buckets_[bucket].copied);
}

/// The sum over all workers, from the host to every GPU.
void GradientRound::spread_sum(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  std::vector<ReplicaBuffer> buffers = flat_buffers(bucket);
  for (ReplicaBuffer& buffer : buffers) buffer.work = state.work.get();
  spread_from_host(state.partials[0].data, buffers);
  host_sums_->bucket(bucket).copies = mark_on_gpus(StreamId::kCommunication);
}

/// Puts the sum over all workers' GPUs into their streams.
void GradientRound::sum_by_nccl(std::size_t bucket) {
  if (!has_dense(bucket) || plan_->buckets[bucket].count == 0) return;
  BucketState& state = buckets_[bucket];
  const TraceSpan span("reduce", "communication",
                       {{"bucket", static_cast<std::int64_t>(bucket)},
                        {"first", std::int64_t{0}},
                        {"end", static_cast<std::int64_t>(plan_->buckets[bucket].count)}});
  state.work = std::make_unique<DeviceWork>(services_.replica_devices, state.copied);
  MutexLock lock(services_.ops_mutex);
  CrossDeviceOpsAccess::all_reduce(*team_->gpu_sums(), ReduceOp::kSum, summed_buffers(bucket));
}

/// What the compute streams get from now on sees the sums.
void GradientRound::join_worker_gpus(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  if (!state.work) return;
  state.work->join();
  for (std::size_t r = 0; by_nccl_ && r < state.wide.size(); ++r) {
    cast_on_gpu(buffer_of(state.wide[r]), buffer_of(state.flat[r]));
  }
}

}  // namespace tutti::internal
