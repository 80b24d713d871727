// Buckets in the memory of GPUs, and their sums over the replicas of this process.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/gpu_sums.h"

#include <deque>
#include <utility>

#include "cross_device_ops/gpu_elements.h"
#include "strategy/reduction/bucket_sums.h"
#include "tensor/gpu/gpu_device.h"
#include "tensor/gpu/peer_work.h"
#include "tutti/core/trace.h"

namespace tutti::internal {
namespace {

std::vector<ReplicaBuffer> buffers_of(std::span<const MutableTensor> tensors, DeviceWork* work) {
  std::vector<ReplicaBuffer> buffers;
  for (const MutableTensor& each : tensors) {
    buffers.push_back(buffer_of(each));
    buffers.back().work = work;
  }
  return buffers;
}

}  // namespace

GpuBuckets::GpuBuckets(GivenGradients& given, std::function<bool(DType)> is_widened)
    : given_(given), is_widened_(std::move(is_widened)), buckets_(given.plan->buckets.size()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const DType dtype = given.bucket(b).dtype;
    buckets_[b].flat.resize(given.num_replicas);
    if (WorkerTeam::sum_dtype(dtype) == dtype || !is_widened_(dtype)) continue;
    buckets_[b].wide.resize(given.num_replicas);
  }
}

void GpuBuckets::make_buffers(std::size_t replica, std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  if (state.flat[replica].buffer()) return;
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const Shape shape{static_cast<std::int64_t>(plan.count)};
  const Device device = given_.services.replica_devices[replica];
  state.flat[replica] = MutableTensor(shape, plan.dtype, device);
  if (state.wide.empty()) return;
  state.wide[replica] = MutableTensor(shape, WorkerTeam::sum_dtype(plan.dtype), device);
}

void GpuBuckets::pack(std::size_t replica, std::size_t bucket) {
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

void GpuBuckets::pack_all(std::size_t bucket) {
  for (std::size_t r = 0; r < given_.num_replicas; ++r) pack(r, bucket);
}

void GpuBuckets::pack_made_dense(std::size_t bucket) {
  for (std::size_t r = 0; r < given_.num_replicas; ++r) {
    const auto was_made_dense = [&](const BucketPlan::Item& item) {
      return given_.kinds[item.variable] == GradientKind::kDense &&
             given_.given_kind(r, item.variable) != GradientKind::kDense;
    };
    if (std::ranges::any_of(given_.bucket(bucket).items, was_made_dense)) pack(r, bucket);
  }
}

std::vector<ReplicaBuffer> GpuBuckets::flat_buffers(std::size_t bucket) const {
  return buffers_of(buckets_[bucket].flat, buckets_[bucket].work.get());
}

std::vector<ReplicaBuffer> GpuBuckets::summed_buffers(std::size_t bucket) const {
  const Bucket& state = buckets_[bucket];
  return buffers_of(state.wide.empty() ? state.flat : state.wide, state.work.get());
}

std::vector<GpuBuckets::Event> GpuBuckets::mark(StreamId stream) const {
  std::vector<Event> events;
  for (const Device& device : given_.services.replica_devices) {
    events.push_back(GpuDevice::of(device).with_context(
        [&](DeviceContext& context) { return context.record(stream); }));
  }
  return events;
}

void GpuBuckets::wait(const std::vector<Event>& events) const {
  for (std::size_t r = 0; r < events.size(); ++r) {
    GpuDevice::of(given_.services.replica_devices[r]).peers().wait(*events[r]);
  }
}

void GpuBuckets::search(const std::function<void(std::size_t bucket)>& sum_again) {
  if (!given_.checks()) return;
  std::vector<std::size_t> dense;
  std::vector<Tensor> sums;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!given_.has_dense(b)) continue;
    dense.push_back(b);
    sums.push_back(buckets_[b].flat[0].freeze());
  }
  for (const std::size_t i : indices_of_non_finite(sums)) {
    const std::size_t bucket = dense[i];
    std::vector<MutableTensor>& flat = buckets_[bucket].flat;
    const Tensor sum = flat[0].freeze().to(Device{});
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      given_.note_first(piece, sum.bytes().data() + piece.begin * size_of(sum.dtype()));
    });
    if (!given_.zeroes()) continue;
    given_.clean(bucket);
    pack_all(bucket);
    sum_again(bucket);
    // Finite values may have an infinite sum.
    const Tensor repeated = flat[0].freeze().to(Device{});
    const Tensor finite = without_non_finite(repeated);
    if (finite.id() == repeated.id()) continue;
    for (MutableTensor& each : flat) each.assign(finite.to(each.device()));
  }
}

namespace {

PendingReduction start_sum(const GivenGradients& given, std::size_t bucket,
                           const std::vector<ReplicaBuffer>& buffers) {
  const TraceSpan span("reduce", "communication",
                       {{"bucket", static_cast<std::int64_t>(bucket)},
                        {"first", std::int64_t{0}},
                        {"end", static_cast<std::int64_t>(given.bucket(bucket).count)}});
  MutexLock lock(given.services.ops_mutex);
  return given.services.ops.start_all_reduce_in_place(ReduceOp::kSum, buffers,
                                                      given.services.communication);
}

class GpuSums final : public BucketSums {
 public:
  explicit GpuSums(GivenGradients& given)
      : BucketSums(given),
        buckets_(given, [](DType) { return false; }),
        pending_(given.plan->buckets.size()) {}

  void filled(std::size_t replica, std::size_t bucket) override { buckets_.pack(replica, bucket); }
  std::vector<SliceRange> begin(std::size_t bucket) override {
    buckets_.pack_made_dense(bucket);
    if (given_.has_dense(bucket)) start(bucket);
    return {};
  }
  void join() override {
    for (PendingReduction& each : pending_) each.join();
    buckets_.search([&](std::size_t bucket) {
      start(bucket);
      pending_[bucket].join();
    });
  }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    return buckets_[bucket].flat[replica].freeze();
  }

 private:
  void start(std::size_t bucket) {
    pending_[bucket] = start_sum(given_, bucket, buckets_.flat_buffers(bucket));
  }

  GpuBuckets buckets_;
  std::vector<PendingReduction> pending_;
};

/// Of a bucket whose sum is there each replica keeps its shards, and the rest is let go.
class GpuShardSums final : public BucketSums {
 public:
  explicit GpuShardSums(GivenGradients& given)
      : BucketSums(given),
        buckets_(given, [](DType) { return false; }),
        pending_(given.plan->buckets.size()),
        sums_(given.variables.size()) {}

  void filled(std::size_t replica, std::size_t bucket) override { buckets_.pack(replica, bucket); }
  std::vector<SliceRange> begin(std::size_t bucket) override {
    buckets_.pack_made_dense(bucket);
    if (given_.has_dense(bucket)) {
      pending_[bucket] = start_sum(given_, bucket, buckets_.flat_buffers(bucket));
    }
    return {};
  }
  void end(std::size_t bucket) override;
  bool lets_go() const override { return true; }
  void join() override {
    MutexLock lock(mutex_);
    for (const std::size_t bucket : under_way_) take(bucket);
    under_way_.clear();
  }
  std::optional<Tensor> sum(std::size_t, std::size_t) const override { return std::nullopt; }
  std::optional<Tensor> sum_of(std::size_t variable, std::size_t replica) const override {
    if (given_.kinds[variable] != GradientKind::kDense) return std::nullopt;
    return sums_[variable][replica];
  }

 private:
  void take(std::size_t bucket) TUTTI_REQUIRES(mutex_);

  GpuBuckets buckets_;
  std::vector<PendingReduction> pending_;
  std::vector<std::vector<Tensor>> sums_;  // per variable and replica: its shard, or the whole
  Mutex mutex_;
  std::deque<std::size_t> under_way_ TUTTI_GUARDED_BY(mutex_);
};

/// What compute streams get from now on waits for the sums that are taken, so the last ones are
/// left to go on beside it.
void GpuShardSums::end(std::size_t bucket) {
  constexpr std::size_t kMostUnderWay = 2;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    for (std::size_t r = 0; r < given_.num_replicas; ++r) {
      given_.of(r, piece.item.variable) = Gradient();
    }
  });
  MutexLock lock(mutex_);
  under_way_.push_back(bucket);
  if (under_way_.size() <= kMostUnderWay) return;
  take(under_way_.front());
  under_way_.pop_front();
}

void GpuShardSums::take(std::size_t bucket) {
  pending_[bucket].join();
  std::vector<MutableTensor>& flat = buckets_[bucket].flat;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    const Variable& variable = given_.variables[piece.item.variable];
    const ReplicaShards* const shards = shards_of(variable);
    const Shard all{0, static_cast<std::int64_t>(piece.item.count)};
    for (std::size_t r = 0; r < given_.num_replicas; ++r) {
      const Shard own = shards ? shards->shard(static_cast<int>(r)) : all;
      const std::int64_t first = static_cast<std::int64_t>(piece.item.first) + own.first;
      const Tensor copy = flat[r].freeze().detached_rows(first, own.count).copy();
      sums_[piece.item.variable].push_back(shards ? copy : copy.detached_reshape(variable.shape()));
    }
  });
  flat.clear();
}

}  // namespace

std::unique_ptr<BucketSums> gpu_sums(GivenGradients& given) {
  return std::make_unique<GpuSums>(given);
}
std::unique_ptr<BucketSums> gpu_shard_sums(GivenGradients& given) {
  return std::make_unique<GpuShardSums>(given);
}

}  // namespace tutti::internal
