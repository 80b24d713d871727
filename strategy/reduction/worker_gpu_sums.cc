// Sums of buckets in the memory of GPUs, of several processes.
// SPDX-License-Identifier: Apache-2.0
//
// *By the hosts*: each bucket's partial sums are made by the GPUs and copied to pinned memory while
// the backward pass goes on; the host waits for these copies alone (events), gives them to the
// other workers like those of CPUs, and has the result copied back to every GPU.
// *By NCCL*: the counters go from host to host; when those of all buckets are there, all workers
// have come to the end of their backward pass, so none waits in NCCL for one that has failed. Then
// the sums are put into the streams, each behind its own gradients.
#include <algorithm>
#include <functional>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/gpu_elements.h"
#include "cross_device_ops/gpu_reductions.h"
#include "strategy/reduction/gpu_sums.h"
#include "strategy/reduction/worker_sums.h"
#include "tensor/gpu/pinned_memory.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {

/// Pinned memory for the buckets of a plan, used by one step after the other: copies of the step
/// before may still be under way when the next one begins. One thread at a time uses a bucket.
class HostSums {
 public:
  struct Bucket {
    std::vector<Elements> partials;  // per partial sum of this worker: elements, then counters
    Elements rounded;                // of 16-bit types: elements of the sum in that type
    std::vector<std::shared_ptr<DeviceEvent>> copies;  // come after the last copies
  };

  HostSums(const BucketPlan& plan, std::size_t num_partials, int num_workers);
  /// Waits for the last copies.
  ~HostSums();
  HostSums(const HostSums&) = delete;
  HostSums& operator=(const HostSums&) = delete;

  std::size_t num_partials() const { return num_partials_; }
  Bucket& bucket(std::size_t index) { return buckets_[index]; }

 private:
  Elements allocate(std::size_t count, DType dtype);

  const std::size_t num_partials_;
  std::vector<BufferRef> memory_;
  std::vector<Bucket> buckets_;
};

Elements HostSums::allocate(std::size_t count, DType dtype) {
  memory_.push_back(allocate_pinned(count * size_of(dtype)));
  return {memory_.back()->data(), count, dtype};
}

HostSums::HostSums(const BucketPlan& plan, std::size_t num_partials, int num_workers)
    : num_partials_(num_partials) {
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketPlan::Bucket& each = plan.buckets[b];
    const std::size_t count = each.count + plan.num_counters(b, num_workers);
    const DType dtype = WorkerTeam::sum_dtype(each.dtype);
    Bucket& bucket = buckets_.emplace_back();
    for (std::size_t p = 0; p < num_partials; ++p) {
      bucket.partials.push_back(allocate(count, dtype));
    }
    if (dtype != each.dtype) bucket.rounded = allocate(each.count, each.dtype);
  }
}

HostSums::~HostSums() {
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

namespace {

/// What both have in common.
class GpuWorkerSums : public WorkerSums {
 public:
  GpuWorkerSums(GivenGradients& given, std::function<bool(DType)> is_widened)
      : WorkerSums(given), gpus_(given, std::move(is_widened)), events_(buckets_.size()) {}

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
  HostedGpuSums(GivenGradients& given, PlanInUse& plan);
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
  void repeat(const BucketPlan::Item& item, std::size_t bucket) override;
  void take(std::size_t bucket) override;
  void finish() override;
  void start(std::size_t bucket) override;
  void clear_partial_sums(std::size_t bucket);
  void repeat_partial_sums(std::size_t bucket);

  std::shared_ptr<HostSums> hosts_;
};

HostedGpuSums::HostedGpuSums(GivenGradients& given, PlanInUse& plan)
    : GpuWorkerSums(given, [](DType) { return true; }) {
  const std::size_t num_partials = team_.partial_sums().size();
  if (!plan.host_sums || plan.host_sums->num_partials() != num_partials) {
    plan.host_sums = std::make_shared<HostSums>(*given.plan, num_partials, team_.num_workers());
  }
  hosts_ = plan.host_sums;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].partials = hosts_->bucket(b).partials;
  }
}

void HostedGpuSums::start(std::size_t bucket) {
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
  sums_to_host(ReduceOp::kSum, gpus_.summed_buffers(bucket), team_.partial_sums(), outputs);
  events_[bucket] = gpus_.mark(StreamId::kCommunication);
  host.copies = events_[bucket];
}

/// Zeros stand for gradients that are not finite before anything of them is given away.
void HostedGpuSums::clear_partial_sums(std::size_t bucket) {
  const std::size_t count = given_.bucket(bucket).count;
  const auto is_finite = [&](const Elements& partial) {
    return count_non_finite(partial.dtype, partial.data, count) == 0;
  };
  if (std::ranges::all_of(buckets_[bucket].partials, is_finite)) return;
  given_.clean(bucket);
  repeat_partial_sums(bucket);
}

void HostedGpuSums::repeat_partial_sums(std::size_t bucket) {
  gpus_.pack_all(bucket);
  start(bucket);
  gpus_.wait(events_[bucket]);
}

/// The whole bucket, which GPUs make.
void HostedGpuSums::repeat(const BucketPlan::Item& item, std::size_t bucket) {
  repeat_partial_sums(bucket);
  if (given_.zeroes()) clear_partial_sums(bucket);
  std::vector<Elements> partials = buckets_[bucket].partials;
  for (Elements& each : partials) each.count = given_.bucket(bucket).count;
  sum_again(item, partials);
}

void HostedGpuSums::take(std::size_t bucket) {
  round_sum(bucket, hosts_->bucket(bucket).rounded);
  search_sum(bucket);
  if (!given_.has_dense(bucket)) return;
  // From the host to every GPU.
  spread_from_host(buckets_[bucket].partials[0].data, gpus_.flat_buffers(bucket));
  hosts_->bucket(bucket).copies = gpus_.mark(StreamId::kCommunication);
}

void HostedGpuSums::finish() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) gpus_[b].work->join();
}

/// Events: gradients are packed.
class NcclGpuSums final : public GpuWorkerSums {
 public:
  explicit NcclGpuSums(GivenGradients& given);
  ~NcclGpuSums() override { wait_for_sums(); }

 private:
  void start(std::size_t bucket) override { events_[bucket] = gpus_.mark(StreamId::kCompute); }
  /// The sum comes later.
  void repeat(const BucketPlan::Item&, std::size_t bucket) override {
    gpus_.pack_all(bucket);
    start(bucket);
  }
  void take(std::size_t) override {}
  void finish() override;
  void sum_on_gpus(std::size_t bucket);
  void join_work(std::size_t bucket);

  std::vector<std::vector<float>> counters_;  // per bucket
};

NcclGpuSums::NcclGpuSums(GivenGradients& given)
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

void NcclGpuSums::finish() {
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
void NcclGpuSums::sum_on_gpus(std::size_t bucket) {
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
void NcclGpuSums::join_work(std::size_t bucket) {
  GpuBuckets::Bucket& state = gpus_[bucket];
  if (!state.work) return;
  state.work->join();
  for (std::size_t r = 0; r < state.wide.size(); ++r) {
    cast_on_gpu(buffer_of(state.wide[r]), buffer_of(state.flat[r]));
  }
}

}  // namespace

std::unique_ptr<BucketSums> gpu_sums_by_hosts(GivenGradients& given, PlanInUse& plan) {
  return std::make_unique<HostedGpuSums>(given, plan);
}
std::unique_ptr<BucketSums> gpu_sums_by_nccl(GivenGradients& given) {
  return std::make_unique<NcclGpuSums>(given);
}

}  // namespace tutti::internal
