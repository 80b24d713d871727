// Sums of buckets in the memory of GPUs, over the replicas of one process or of several.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/device_work.h"
#include "strategy/reduction/bucket_sums.h"
#include "strategy/reduction/worker_sums.h"
#include "tensor/gpu/pinned_memory.h"
#include "tensor/gpu_device.h"
#include "tutti/core/logging.h"
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

/// The flat buffers of one reduction's buckets, which pack() makes. Nothing here waits for a GPU
/// but search() and wait(). Threads: of a bucket, each replica its own buffers until all are
/// packed; then one.
class GpuBuckets {
 public:
  using Event = std::shared_ptr<DeviceEvent>;
  struct Bucket {
    std::vector<MutableTensor> flat;   // per replica, reduced in place
    std::vector<MutableTensor> wide;   // per replica: a 16-bit bucket as float32, or none
    std::unique_ptr<DeviceWork> work;  // with other workers: on their sum
  };

  /// `is_widened(dtype)`: of buckets that are to be rounded once only.
  GpuBuckets(GivenGradients& given, const std::function<bool(DType)>& is_widened)
      : given_(given), buckets_(given.plan->buckets.size()) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const DType dtype = given.bucket(b).dtype;
      buckets_[b].flat.resize(given.num_replicas);
      if (PartialSums::sum_dtype(dtype) == dtype || !is_widened(dtype)) continue;
      buckets_[b].wide.resize(given.num_replicas);
    }
  }

  Bucket& operator[](std::size_t bucket) { return buckets_[bucket]; }
  const Bucket& operator[](std::size_t bucket) const { return buckets_[bucket]; }

  /// The replica's dense gradients of the bucket, in one launch of its compute stream; zeros
  /// between and where it has none.
  void pack(std::size_t replica, std::size_t bucket) {
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
  void pack_all(std::size_t bucket) {
    for (std::size_t r = 0; r < given_.num_replicas; ++r) pack(r, bucket);
  }
  /// Of replicas whose gradients were made dense after they had packed them.
  void pack_made_dense(std::size_t bucket) {
    for (std::size_t r = 0; r < given_.num_replicas; ++r) {
      const auto was_made_dense = [&](const BucketPlan::Item& item) {
        return given_.kinds[item.variable] == GradientKind::kDense &&
               given_.given_kind(r, item.variable) != GradientKind::kDense;
      };
      if (std::ranges::any_of(given_.bucket(bucket).items, was_made_dense)) pack(r, bucket);
    }
  }
  /// What holds results, and what is summed; both as part of the bucket's work, if it has one.
  std::vector<ReplicaBuffer> flat_buffers(std::size_t bucket) const {
    return buffers_of(buckets_[bucket].flat, buckets_[bucket].work.get());
  }
  std::vector<ReplicaBuffer> summed_buffers(std::size_t bucket) const {
    const Bucket& state = buckets_[bucket];
    return buffers_of(state.wide.empty() ? state.flat : state.wide, state.work.get());
  }
  std::vector<Event> mark(StreamId stream) const {
    std::vector<Event> events;
    for (const Device& device : given_.services.replica_devices) {
      events.push_back(GpuDevice::of(device).with_context(
          [&](DeviceContext& context) { return context.record(stream); }));
    }
    return events;
  }
  void wait(const std::vector<Event>& events) const {
    for (std::size_t r = 0; r < events.size(); ++r) {
      GpuDevice::of(given_.services.replica_devices[r]).peers().wait(*events[r]);
    }
  }
  /// Looks for values that are not finite, notes them, and has buckets with some summed again from
  /// what is finite, by sum_again(bucket), if zeros are to stand for them. The host reads a number
  /// of each bucket, all at once, and, if there are some, the gradients themselves.
  void search(const std::function<void(std::size_t bucket)>& sum_again) {
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

 private:
  void make_buffers(std::size_t replica, std::size_t bucket) {
    Bucket& state = buckets_[bucket];
    if (state.flat[replica].buffer()) return;
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    const Shape shape{static_cast<std::int64_t>(plan.count)};
    const Device device = given_.services.replica_devices[replica];
    state.flat[replica] = MutableTensor(shape, plan.dtype, device);
    if (state.wide.empty()) return;
    state.wide[replica] = MutableTensor(shape, PartialSums::sum_dtype(plan.dtype), device);
  }

  GivenGradients& given_;
  std::vector<Bucket> buckets_;
};

namespace {

/// Of variables that are cut over the replicas each keeps its shards, and the rest of a bucket is
/// let go once its sum is there. Where values that are not finite are looked for, sums stay whole:
/// that is done when all are there.
class GpuSums final : public BucketSums {
 public:
  explicit GpuSums(GivenGradients& given)
      : BucketSums(given),
        gives_shards_(std::ranges::any_of(given.variables, shards_of) && !given.checks()),
        buckets_(given, [](DType) { return false; }),
        pending_(given.plan->buckets.size()) {}

  void filled(std::size_t replica, std::size_t bucket) override { buckets_.pack(replica, bucket); }
  std::vector<SliceRange> begin(std::size_t bucket) override {
    buckets_.pack_made_dense(bucket);
    if (given_.has_dense(bucket)) start(bucket);
    return {};
  }
  /// What compute streams get from now on waits for the shards that are taken, so the last buckets
  /// are left to go on beside it.
  void end(std::size_t bucket) override {
    constexpr std::size_t kMostUnderWay = 2;
    if (!gives_shards_) return;
    given_.let_go(bucket);
    MutexLock lock(mutex_);
    under_way_.push_back(bucket);
    if (under_way_.size() <= kMostUnderWay) return;
    take_shards(under_way_.front());
    under_way_.pop_front();
  }
  bool gives_shards() const override { return gives_shards_; }
  void join() override {
    {
      MutexLock lock(mutex_);
      for (const std::size_t bucket : under_way_) take_shards(bucket);
      under_way_.clear();
    }
    if (gives_shards_) return;
    for (PendingReduction& each : pending_) each.join();
    buckets_.search([&](std::size_t bucket) {
      start(bucket);
      pending_[bucket].join();
    });
  }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    if (gives_shards_) return std::nullopt;
    return buckets_[bucket].flat[replica].freeze();
  }

 private:
  void start(std::size_t bucket) {
    const TraceSpan span("reduce", "communication",
                         {{"bucket", static_cast<std::int64_t>(bucket)},
                          {"first", std::int64_t{0}},
                          {"end", static_cast<std::int64_t>(given_.bucket(bucket).count)}});
    std::vector<ReplicaBuffer> buffers = buckets_.flat_buffers(bucket);
    for (ReplicaBuffer& buffer : buffers) {
      buffer.id = given_.bucket(bucket).id;
      buffer.name = given_.bucket(bucket).name;
    }
    MutexLock lock(given_.services.ops_mutex);
    pending_[bucket] = given_.services.ops.start_all_reduce_in_place(ReduceOp::kSum, buffers,
                                                                     given_.services.communication);
  }
  void take_shards(std::size_t bucket) TUTTI_REQUIRES(mutex_) {
    pending_[bucket].join();
    std::vector<MutableTensor>& flat = buckets_[bucket].flat;
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      const ReplicaShards* const shards = shards_of(given_.variables[piece.item.variable]);
      const Shard all{0, static_cast<std::int64_t>(piece.item.count)};
      for (std::size_t r = 0; r < given_.num_replicas; ++r) {
        const Shard own = shards ? shards->shard(static_cast<int>(r)) : all;
        const std::int64_t first = static_cast<std::int64_t>(piece.item.first) + own.first;
        kept_[piece.item.variable].push_back(
            flat[r].freeze().detached_rows(first, own.count).copy());
      }
    });
    flat.clear();
  }

  const bool gives_shards_;
  GpuBuckets buckets_;
  std::vector<PendingReduction> pending_;  // per bucket
  Mutex mutex_;
  std::deque<std::size_t> under_way_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<BucketSums> gpu_sums(GivenGradients& given) {
  return std::make_unique<GpuSums>(given);
}

// Sums of buckets in the memory of GPUs, of several processes.
//
// *By the hosts*: each bucket's partial sums are made by the GPUs and copied to pinned memory while
// the backward pass goes on; the host waits for these copies alone (events), gives them to the
// other workers like those of CPUs, and has the result copied back to every GPU.
// *By NCCL*: the counters go from host to host; when those of all buckets are there, all workers
// have come to the end of their backward pass, so none waits in NCCL for one that has failed. Then
// the sums are put into the streams, each behind its own gradients.

/// Pinned memory for the buckets of a plan, used by one step after the other: copies of the step
/// before may still be under way when the next one begins. One thread at a time uses a bucket.
class HostSums {
 public:
  struct Bucket {
    std::vector<Elements> partials;  // per partial sum of this worker: elements, then counters
    Elements rounded;                // of 16-bit types: elements of the sum in that type
    std::vector<std::shared_ptr<DeviceEvent>> copies;  // come after the last copies
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
        } catch (const std::exception& error) {  // a GPU that has failed copies nothing more
          log(LogLevel::kError, concat("sums of gradients on the host: ", error.what()));
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

/// What both have in common.
class GpuWorkerSums : public WorkerSums {
 public:
  GpuWorkerSums(GivenGradients& given, const std::function<bool(DType)>& is_widened)
      : WorkerSums(given), gpus_(given, is_widened), events_(buckets_.size()) {}

  void filled(std::size_t replica, std::size_t bucket) override { gpus_.pack(replica, bucket); }
  std::vector<SliceRange> begin(std::size_t bucket) override {
    count_kinds(bucket);
    gpus_.pack_made_dense(bucket);
    start(bucket);
    return {};
  }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    return gpus_[bucket].flat[replica].freeze();
  }

 protected:
  /// All replicas have packed the bucket.
  virtual void start(std::size_t bucket) = 0;

  GpuBuckets gpus_;
  std::vector<std::vector<GpuBuckets::Event>> events_;  // per bucket and replica
};

/// Events: the partial sums are on the host.
class HostedGpuSums final : public GpuWorkerSums {
 public:
  HostedGpuSums(GivenGradients& given, PlanInUse& plan)
      : GpuWorkerSums(given, [](DType) { return true; }) {
    const std::size_t num_partials = team_.sums().nodes().size();
    if (!plan.host_sums || plan.host_sums->num_partials() != num_partials) {
      plan.host_sums = std::make_shared<HostSums>(*given.plan, num_partials, team_.num_workers());
    }
    hosts_ = plan.host_sums;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].partials = hosts_->bucket(b).partials;
    }
  }
  ~HostedGpuSums() override { wait_for_sums(); }

 private:
  /// What is still to be looked at is not.
  bool can_go(std::size_t bucket) const override {
    return !given_.zeroes() &&
           std::ranges::all_of(events_[bucket], [](const auto& copy) { return copy->is_done(); });
  }
  void make_ready(std::size_t bucket) override {
    gpus_.wait(events_[bucket]);
    if (given_.zeroes()) clear_partial_sums(bucket);
  }
  /// The whole bucket, which GPUs make.
  void repeat(const BucketPlan::Item& item, std::size_t bucket) override {
    repeat_partial_sums(bucket);
    if (given_.zeroes()) clear_partial_sums(bucket);
    std::vector<Elements> partials = buckets_[bucket].partials;
    for (Elements& each : partials) each.count = given_.bucket(bucket).count;
    sum_again(item, partials);
  }
  void take(std::size_t bucket) override {
    round_sum(bucket, hosts_->bucket(bucket).rounded);
    search_sum(bucket);
    if (!given_.has_dense(bucket)) return;
    // From the host to every GPU.
    spread_from_host(buckets_[bucket].partials[0].data, gpus_.flat_buffers(bucket));
    hosts_->bucket(bucket).copies = gpus_.mark(StreamId::kCommunication);
  }
  void finish() override {
    for (std::size_t b = 0; b < buckets_.size(); ++b) gpus_[b].work->join();
  }
  void start(std::size_t bucket) override {
    GpuBuckets::Bucket& state = gpus_[bucket];
    HostSums::Bucket& host = hosts_->bucket(bucket);
    const std::vector<Device>& devices = given_.services.replica_devices;
    state.work.reset();
    state.work = std::make_unique<DeviceWork>(devices);
    // The step before may still copy its result from there.
    for (const Device& device : devices) {
      for (const GpuBuckets::Event& copy : host.copies) state.work->wait(device, *copy);
    }
    std::vector<std::byte*> outputs;
    for (const Elements& partial : host.partials) outputs.push_back(partial.data);
    sums_to_host(ReduceOp::kSum, gpus_.summed_buffers(bucket), team_.sums().nodes(), outputs);
    events_[bucket] = gpus_.mark(StreamId::kCommunication);
    host.copies = events_[bucket];
  }
  /// Zeros stand for gradients that are not finite before anything of them is given away.
  void clear_partial_sums(std::size_t bucket) {
    const std::size_t count = given_.bucket(bucket).count;
    const auto is_finite = [&](const Elements& partial) {
      return count_non_finite(partial.dtype, partial.data, count) == 0;
    };
    if (std::ranges::all_of(buckets_[bucket].partials, is_finite)) return;
    given_.clean(bucket);
    repeat_partial_sums(bucket);
  }
  void repeat_partial_sums(std::size_t bucket) {
    gpus_.pack_all(bucket);
    start(bucket);
    gpus_.wait(events_[bucket]);
  }

  std::shared_ptr<HostSums> hosts_;
};

/// Events: gradients are packed.
class NcclGpuSums final : public GpuWorkerSums {
 public:
  explicit NcclGpuSums(GivenGradients& given)
      : GpuWorkerSums(given,
                      [team = given.services.team](DType dtype) {
                        return !team->gpu_sums()->supports(ReduceOp::kSum, dtype, DeviceType::kGpu);
                      }),
        counters_(buckets_.size()) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      counters_[b].resize(given.plan->num_counters(b, team_.num_workers()));
      buckets_[b].partials.emplace_back(std::span(counters_[b]));
      buckets_[b].first_counter = 0;
    }
  }
  ~NcclGpuSums() override { wait_for_sums(); }

 private:
  void start(std::size_t bucket) override { events_[bucket] = gpus_.mark(StreamId::kCompute); }
  /// The sum comes later.
  void repeat(const BucketPlan::Item&, std::size_t bucket) override {
    gpus_.pack_all(bucket);
    start(bucket);
  }
  void take(std::size_t) override {}
  void finish() override {
    for (std::size_t b = 0; b < buckets_.size(); ++b) sum_on_gpus(b);
    for (std::size_t b = 0; b < buckets_.size(); ++b) join_work(b);
    gpus_.search([&](std::size_t bucket) {
      start(bucket);
      sum_on_gpus(bucket);
      join_work(bucket);
    });
    // Which of a worker's own replicas brought one, the others do not see.
    if (given_.zeroes()) share_findings();
  }
  /// Puts the sum over all workers' GPUs into their streams.
  void sum_on_gpus(std::size_t bucket) {
    const std::size_t count = given_.bucket(bucket).count;
    if (!given_.has_dense(bucket) || count == 0) return;
    const TraceSpan span("reduce", "communication",
                         {{"bucket", static_cast<std::int64_t>(bucket)},
                          {"first", std::int64_t{0}},
                          {"end", static_cast<std::int64_t>(count)}});
    gpus_[bucket].work =
        std::make_unique<DeviceWork>(given_.services.replica_devices, events_[bucket]);
    MutexLock lock(given_.services.ops_mutex);
    carry_out_unchecked(*team_.gpu_sums(), {.outputs = gpus_.summed_buffers(bucket)});
  }
  /// What the compute streams get from now on sees the sums.
  void join_work(std::size_t bucket) {
    GpuBuckets::Bucket& state = gpus_[bucket];
    if (!state.work) return;
    state.work->join();
    for (std::size_t r = 0; r < state.wide.size(); ++r) {
      cast_on_gpu(buffer_of(state.wide[r]), buffer_of(state.flat[r]));
    }
  }

  std::vector<std::vector<float>> counters_;  // per bucket
};

}  // namespace

std::unique_ptr<BucketSums> gpu_sums_by_hosts(GivenGradients& given, PlanInUse& plan) {
  return std::make_unique<HostedGpuSums>(given, plan);
}
std::unique_ptr<BucketSums> gpu_sums_by_nccl(GivenGradients& given) {
  return std::make_unique<NcclGpuSums>(given);
}

}  // namespace tutti::internal
