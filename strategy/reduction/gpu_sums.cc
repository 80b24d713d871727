// Sums of buckets in GPU memory, across the replicas of one or more processes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/gpu_sums.h"

#include <algorithm>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/device_work.h"
#include "tensor/gpu/pinned_memory.h"
#include "tensor/gpu_device.h"
#include "tensor/half_conversion.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {

/// Pinned memory for the buckets of a plan, reused by consecutive steps; one step's copies may
/// still be running when the next step begins. Each bucket is used by one thread at a time.
class HostSums {
 public:
  struct Bucket {
    std::vector<Elements> partials;  // for each partial sum of this worker: elements, then counters
    Elements rounded;                // for 16-bit types: the sum's elements in that type
    std::vector<std::shared_ptr<DeviceEvent>> copies;  // events recorded after the last copies
  };

  HostSums(const BucketPlan& plan, std::size_t num_partials, int num_workers)
      : num_partials_(num_partials) {
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const BucketPlan::Bucket& each = plan.buckets[b];
      const std::size_t count = each.count + plan.num_counters(b, num_workers);
      const DType dtype = PartialSums::sum_dtype(each.dtype);
      Bucket& bucket = buckets_.emplace_back();
      for (std::size_t p = 0; p < num_partials; ++p) {
        bucket.partials.push_back(allocate(count, dtype));
      }
      if (dtype != each.dtype) bucket.rounded = allocate(each.count, each.dtype);
    }
  }
  /// Waits for the last copies.
  ~HostSums() {
    for (const Bucket& bucket : buckets_) {
      for (const auto& copy : bucket.copies) {
        try {
          copy->synchronize();
        } catch (const std::exception& error) {  // a failed GPU makes no further copies
          log(LogLevel::kError,
              concat("gradients: a copy to or from the host failed: ", error.what()));
        }
      }
    }
  }
  HostSums(const HostSums&) = delete;
  HostSums& operator=(const HostSums&) = delete;

  std::size_t num_partials() const { return num_partials_; }
  Bucket& bucket(std::size_t index) { return buckets_[index]; }

 private:
  Elements allocate(std::size_t count, DType dtype) {
    memory_.push_back(allocate_pinned(count * size_of(dtype)));
    return {memory_.back()->data(), count, dtype};
  }

  const std::size_t num_partials_;
  std::vector<BufferRef> memory_;
  std::vector<Bucket> buckets_;
};

namespace {

std::vector<ReplicaBuffer> buffers_of(std::span<const MutableTensor> tensors, DeviceWork* work) {
  std::vector<ReplicaBuffer> buffers;
  for (const MutableTensor& each : tensors) {
    buffers.push_back(buffer_of(each));
    buffers.back().work = work;
  }
  return buffers;
}

TraceSpan reduce_span(std::size_t bucket, std::size_t count) {
  return TraceSpan("reduce", "communication",
                   {{"bucket", static_cast<std::int64_t>(bucket)},
                    {"first", std::int64_t{0}},
                    {"end", static_cast<std::int64_t>(count)}});
}

}  // namespace

GpuSums::GpuSums(BucketInputs& given, PlanInUse& plan)
    : given_(given),
      by_(!given.team              ? SummedBy::kOperation
          : given.team->gpu_sums() ? SummedBy::kNccl
                                   : SummedBy::kHosts),
      gives_shards_(!given.team && std::ranges::any_of(given.variables, shards_of) &&
                    !given.checks()),
      buckets_(given.plan->buckets.size()) {
  if (by_ == SummedBy::kHosts) {
    const std::size_t num_partials = given.team->sums().nodes().size();
    if (!plan.host_sums || plan.host_sums->num_partials() != num_partials) {
      plan.host_sums =
          std::make_shared<HostSums>(*given.plan, num_partials, given.team->num_workers());
    }
    hosts_ = plan.host_sums;
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& state = buckets_[b];
    state.flat.resize(given.num_replicas);
    if (is_widened(given.bucket(b).dtype)) state.wide.resize(given.num_replicas);
    if (by_ == SummedBy::kHosts) {
      state.partials = {hosts_->bucket(b).partials, given.bucket(b).count};
    } else if (by_ == SummedBy::kNccl) {
      state.counters.resize(given.plan->num_counters(b, given.team->num_workers()));
      state.partials.sums.emplace_back(std::span(state.counters));
    }
  }
}

/// Returns true if buckets of this type are summed in a wider type, and are rounded only once,
/// after all workers' values have been added.
bool GpuSums::is_widened(DType dtype) const {
  if (by_ == SummedBy::kOperation || PartialSums::sum_dtype(dtype) == dtype) return false;
  return by_ == SummedBy::kHosts ||
         !given_.team->gpu_sums()->supports(ReduceOp::kSum, dtype, DeviceType::kGpu);
}

void GpuSums::make_buffers(std::size_t replica, std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  if (state.flat[replica].buffer()) return;
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const Shape shape{static_cast<std::int64_t>(plan.count)};
  const Device device = given_.services.replica_devices[replica];
  state.flat[replica] = MutableTensor(shape, plan.dtype, device);
  if (state.wide.empty()) return;
  state.wide[replica] = MutableTensor(shape, PartialSums::sum_dtype(plan.dtype), device);
}

void GpuSums::pack(std::size_t replica, std::size_t bucket) {
  make_buffers(replica, bucket);
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const MutableTensor& flat = buckets_[bucket].flat[replica];
  auto* const begin = static_cast<std::byte*>(flat.address());
  std::vector<DeviceCopy> copies;
  std::size_t num_covered = 0;
  for (const BucketPlan::Item& item : plan.items) {
    Gradient& gradient = given_.of(replica, item.variable);
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
    cast_on_gpu(buffer_of(flat), buffer_of(buckets_[bucket].wide[replica]));
  }
}

void GpuSums::pack_all(std::size_t bucket) {
  for (std::size_t r = 0; r < given_.num_replicas; ++r) pack(r, bucket);
}

void GpuSums::begin(std::size_t bucket) {
  for (std::size_t r = 0; r < given_.num_replicas; ++r) {
    // Repack gradients that were made dense after the replica had packed them.
    const auto was_made_dense = [&](const BucketPlan::Item& item) {
      return given_.kinds[item.variable] == GradientKind::kDense &&
             given_.given_kind(r, item.variable) != GradientKind::kDense;
    };
    if (std::ranges::any_of(given_.bucket(bucket).items, was_made_dense)) pack(r, bucket);
  }
  start(bucket);
}

void GpuSums::start(std::size_t bucket) {
  switch (by_) {
    case SummedBy::kOperation:
      return start_operation(bucket);
    case SummedBy::kHosts:
      return start_copies_to_host(bucket);
    case SummedBy::kNccl:
      buckets_[bucket].events = mark(StreamId::kCompute);
  }
}

void GpuSums::start_operation(std::size_t bucket) {
  if (!given_.has_dense(bucket)) return;
  const TraceSpan span = reduce_span(bucket, given_.bucket(bucket).count);
  std::vector<ReplicaBuffer> buffers = flat_buffers(bucket);
  for (ReplicaBuffer& buffer : buffers) {
    buffer.id = given_.bucket(bucket).id;
    buffer.name = given_.bucket(bucket).name;
  }
  const ReplicaServices& services = given_.services;
  MutexLock lock(services.ops_mutex);
  buckets_[bucket].pending =
      services.ops.start_all_reduce_in_place(ReduceOp::kSum, buffers, services.communication);
}

void GpuSums::begin_work(std::size_t bucket, std::unique_ptr<DeviceWork> work) {
  Bucket& state = buckets_[bucket];
  state.work = work.get();
  state.pending.add(std::move(work));
}

void GpuSums::start_copies_to_host(std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  HostSums::Bucket& host = hosts_->bucket(bucket);
  const std::vector<Device>& devices = given_.services.replica_devices;
  state.pending.join();
  begin_work(bucket, std::make_unique<DeviceWork>(devices));
  // Waits for the previous step's copies, which may still be reading the same host memory.
  for (const Device& device : devices) {
    for (const auto& copy : host.copies) state.work->wait(device, *copy);
  }
  std::vector<std::byte*> outputs;
  for (const Elements& partial : host.partials) outputs.push_back(partial.data);
  sums_to_host(ReduceOp::kSum, summed_buffers(bucket), given_.team->sums().nodes(), outputs);
  state.events = mark(StreamId::kCommunication);
  host.copies = state.events;
}

/// Enqueues the sum across all workers' GPUs in the GPUs' streams.
void GpuSums::start_nccl(std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  const std::size_t count = given_.bucket(bucket).count;
  if (!given_.has_dense(bucket) || count == 0) return;
  const TraceSpan span = reduce_span(bucket, count);
  begin_work(bucket, std::make_unique<DeviceWork>(given_.services.replica_devices, state.events));
  MutexLock lock(given_.services.ops_mutex);
  carry_out_unchecked(*given_.team->gpu_sums(), {.outputs = summed_buffers(bucket)});
  state.pending.after_join([&state] {
    for (std::size_t r = 0; r < state.wide.size(); ++r) {
      cast_on_gpu(buffer_of(state.wide[r]), buffer_of(state.flat[r]));
    }
  });
}

void GpuSums::end(std::size_t bucket) {
  // Later work on the compute streams waits for take_shards(). The last buckets are therefore left
  // to join(), so that their sums run concurrently with that work.
  constexpr std::size_t kMostUnderWay = 2;
  if (!gives_shards_) return;
  given_.release_gradients(bucket);
  MutexLock lock(mutex_);
  under_way_.push_back(bucket);
  if (under_way_.size() <= kMostUnderWay) return;
  take_shards(under_way_.front());
  under_way_.pop_front();
}

void GpuSums::join() {
  {
    MutexLock lock(mutex_);
    for (const std::size_t bucket : under_way_) take_shards(bucket);
    under_way_.clear();
  }
  if (gives_shards_) return;
  for (std::size_t b = 0; b < buckets_.size() && by_ == SummedBy::kNccl; ++b) start_nccl(b);
  for (Bucket& bucket : buckets_) bucket.pending.join();
  if (given_.checks() && by_ != SummedBy::kHosts) search();
}

void GpuSums::take_shards(std::size_t bucket) {
  buckets_[bucket].pending.join();
  std::vector<MutableTensor>& flat = buckets_[bucket].flat;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    const ReplicaShards* const shards = shards_of(given_.variables[piece.item.variable]);
    const Shard all{0, static_cast<std::int64_t>(piece.item.count)};
    for (std::size_t r = 0; r < given_.num_replicas; ++r) {
      const Shard own = shards ? shards->shard(static_cast<int>(r)) : all;
      const std::int64_t first = static_cast<std::int64_t>(piece.item.first) + own.first;
      given_.kept_sums[piece.item.variable].push_back(
          flat[r].freeze().detached_rows(first, own.count).copy());
    }
  });
  flat.clear();
}

/// Searches the sums for non-finite values. The host reads one count per bucket, all at once, and
/// reads a bucket's gradients only if its count is not 0.
void GpuSums::search() {
  std::vector<std::size_t> dense;
  std::vector<Tensor> sums;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!given_.has_dense(b)) continue;
    dense.push_back(b);
    sums.push_back(buckets_[b].flat[0].freeze());
  }
  for (const std::size_t i : indices_of_non_finite(sums)) {
    const Tensor sum = sums[i].to(Device{});
    given_.for_dense_items(dense[i], [&](const Piece& piece) {
      given_.note_first(piece, sum.bytes().data() + piece.begin * size_of(sum.dtype()));
    });
  }
}

bool GpuSums::is_on_host(std::size_t bucket) const {
  if (by_ == SummedBy::kNccl) return true;
  return std::ranges::all_of(buckets_[bucket].events,
                             [](const auto& copy) { return copy->is_done(); });
}

void GpuSums::wait_for_host(std::size_t bucket) {
  if (by_ == SummedBy::kNccl) return;
  const Events& events = buckets_[bucket].events;
  for (std::size_t r = 0; r < events.size(); ++r) {
    GpuDevice::of(given_.services.replica_devices[r]).peers().wait(*events[r]);
  }
}

std::vector<Elements> GpuSums::repeat(std::size_t bucket) {
  pack_all(bucket);
  start(bucket);
  if (by_ == SummedBy::kNccl) return {};  // join() starts the sums
  wait_for_host(bucket);
  std::vector<Elements> partials = buckets_[bucket].partials.sums;
  for (Elements& each : partials) each.count = given_.bucket(bucket).count;
  return partials;
}

void GpuSums::take(std::size_t bucket) {
  if (by_ == SummedBy::kNccl) return;
  HostSums::Bucket& host = hosts_->bucket(bucket);
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  Elements sum = host.partials[0];
  if (sum.dtype != plan.dtype) {
    narrow(reinterpret_cast<const float*>(sum.data), plan.dtype, host.rounded.data, plan.count);
    sum = host.rounded;
  }
  given_.search_sum(bucket, sum.data);
  if (!given_.has_dense(bucket)) return;
  broadcast_from_host(sum.data, flat_buffers(bucket));
  host.copies = mark(StreamId::kCommunication);
}

std::vector<ReplicaBuffer> GpuSums::flat_buffers(std::size_t bucket) const {
  return buffers_of(buckets_[bucket].flat, buckets_[bucket].work);
}

std::vector<ReplicaBuffer> GpuSums::summed_buffers(std::size_t bucket) const {
  const Bucket& state = buckets_[bucket];
  return buffers_of(state.wide.empty() ? state.flat : state.wide, state.work);
}

GpuSums::Events GpuSums::mark(StreamId stream) const {
  Events events;
  for (const Device& device : given_.services.replica_devices) {
    events.push_back(GpuDevice::of(device).with_context(
        [&](DeviceContext& context) { return context.record(stream); }));
  }
  return events;
}

}  // namespace tutti::internal
