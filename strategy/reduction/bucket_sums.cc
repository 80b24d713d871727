// Sums of one reduction's buckets: their memory, and the sums over replicas and workers.
// SPDX-License-Identifier: Apache-2.0
//
// A bucket's *partial sums* are this worker's contribution to the team (PartialSums), in buffers of
// PartialSums::sum_dtype(). The bucket's elements are followed by two *counters* per variable: the
// numbers of replicas with a dense gradient and with slices. They are summed like the elements, so
// that every worker gets the kinds of all workers without another message. In one bucket, two
// groups of numbers follow the counters. The first is the bytes of the worker's digest
// (consistency_check.h): if digests are equal on all workers, each sum is the number of workers
// times a worker's own byte. The second is the waiting time of each worker (straggler_watch.h), to
// which the other workers add 0. Decisions depend only on sums, which are equal on all workers.
#include "strategy/reduction/bucket_sums.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "tensor/half_conversion.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kCountersPerItem = BucketPlan::kCountersPerItem;
constexpr std::size_t kBucketOfWorkers = BucketPlan::kBucketOfWorkers;
constexpr std::size_t kDigestBytes = BucketPlan::kDigestBytes;

/// Returns the counter at `index`. Both types, float32 and float64, represent it exactly for any
/// number of replicas.
double counter(const Elements& partial, std::size_t index) {
  if (partial.dtype == DType::kFloat64) return reinterpret_cast<const double*>(partial.data)[index];
  return reinterpret_cast<const float*>(partial.data)[index];
}
void set_counter(const Elements& partial, std::size_t index, double value) {
  if (partial.dtype == DType::kFloat64) {
    reinterpret_cast<double*>(partial.data)[index] = value;
  } else {
    reinterpret_cast<float*>(partial.data)[index] = static_cast<float>(value);
  }
}

bool is_dense_on_gpu(const Gradient& gradient) {
  return gradient.is_dense() && device_of(gradient).type == DeviceType::kGpu;
}

}  // namespace

BucketSums::BucketSums(BucketInputs& given, PlanInUse& plan)
    : given_(given), team_(given.team), buckets_(given.plan->buckets.size()) {
  for (const BucketPlan::Bucket& bucket : given.plan->buckets) {
    if (!team_ || is_floating(bucket.dtype)) continue;
    fail(ErrorCode::kUnimplemented, "gradients of ", bucket.dtype,
         " are not supported with several workers; expected a floating-point type; try a cast");
  }
  if (!team_ && given.num_replicas == 1) return;
  if (given.services.replica_devices.front().type == DeviceType::kGpu) {
    gpus_.emplace(given, plan);
  } else {
    cpus_.emplace(given);
  }
}

void BucketSums::given(std::size_t replica, std::size_t variable) {
  if (cpus_ || gpus_ || !given_.checks()) return;
  // Gradients on GPUs are searched for non-finite values later, all at once.
  if (!is_dense_on_gpu(given_.of(replica, variable))) given_.search_gradient(variable);
}

void BucketSums::filled(std::size_t replica, std::size_t bucket) {
  if (gpus_) gpus_->pack(replica, bucket);
}

std::vector<SliceRange> BucketSums::begin(std::size_t bucket) {
  std::vector<SliceRange> slices;
  if (cpus_) slices = cpus_->begin(bucket);
  if (team_) count_kinds(bucket);
  if (gpus_) gpus_->begin(bucket);
  if (team_) return slices;  // sparse sums require every worker's gradient kinds
  for (const BucketPlan::Item& item : given_.bucket(bucket).items) {
    if (given_.kinds[item.variable] != GradientKind::kSparse) continue;
    given_.sum_slices(item.variable, given_.slices_of(item.variable));
  }
  return slices;
}

void BucketSums::reduce(std::size_t bucket, SliceRange slice) { cpus_->reduce(bucket, slice); }

void BucketSums::end(std::size_t bucket) {
  if (cpus_) cpus_->end(bucket);
  if (gpus_) gpus_->end(bucket);
  if (!team_) return;
  {
    MutexLock lock(mutex_);
    buckets_[bucket].summed = true;
  }
  submit_buckets(false);
}

bool BucketSums::gives_shards() const {
  return cpus_ ? cpus_->gives_shards() : gpus_ && gpus_->gives_shards();
}

void BucketSums::join() {
  if (team_) return join_workers();
  if (gpus_) return gpus_->join();
  if (!cpus_ && given_.checks()) search_alone();
}

void BucketSums::search_alone() {
  std::vector<std::size_t> later;
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < given_.variables.size(); ++i) {
    if (!is_dense_on_gpu(given_.of(0, i))) continue;
    later.push_back(i);
    values.push_back(given_.of(0, i).dense().to(given_.services.replica_devices.front()));
  }
  for (const std::size_t i : indices_of_non_finite(values)) given_.search_gradient(later[i]);
}

std::optional<Tensor> BucketSums::sum(std::size_t bucket, std::size_t replica) const {
  if (cpus_) return cpus_->sum(bucket, replica);
  if (!gpus_ || gpus_->gives_shards()) return std::nullopt;
  return gpus_->sum(bucket, replica);
}

std::optional<Tensor> BucketSums::sum_of(std::size_t variable, std::size_t replica) const {
  const std::vector<Tensor>& sums = given_.kept_sums[variable];
  if (sums.empty()) return std::nullopt;  // no elements: the gradient is already the sum
  if (shards_of(given_.variables[variable])) return sums[replica];
  return sums[sums.size() == 1 ? 0 : replica]
      .detached_reshape(given_.variables[variable].shape())
      .to(given_.services.replica_devices[replica]);
}

void BucketSums::count_kinds(std::size_t bucket) {
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const HostPartials& partial = partials(bucket);
  for (std::size_t p = 0; p < partial.sums.size(); ++p) {
    const CanonicalNode node = team_->sums().nodes()[p];
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      double dense = 0.0, sparse = 0.0;
      for (int r = node.first; r < node.first + node.count; ++r) {
        const GradientKind kind =
            given_.given_kind(static_cast<std::size_t>(r), plan.items[i].variable);
        dense += kind == GradientKind::kDense ? 1.0 : 0.0;
        sparse += kind == GradientKind::kSparse ? 1.0 : 0.0;
      }
      const std::size_t first = partial.first_counter + kCountersPerItem * i;
      set_counter(partial.sums[p], first, dense);
      set_counter(partial.sums[p], first + 1, sparse);
    }
  }
  if (bucket == kBucketOfWorkers) write_numbers();
}

std::size_t BucketSums::first_number() {
  return partials(kBucketOfWorkers).first_counter +
         kCountersPerItem * given_.bucket(kBucketOfWorkers).items.size();
}

void BucketSums::write_numbers() {
  numbers_.assign(kDigestBytes + static_cast<std::size_t>(team_->num_workers()), 0.0);
  digest_ = team_->check()->digest();
  // A byte divided by 256 is less than 1, and sums of such values are exact, even in 16 bits and in
  // any order.
  for (std::size_t i = 0; i < kDigestBytes; ++i) {
    numbers_[i] = static_cast<double>((digest_ >> (8 * i)) & 0xff) / 256.0;
  }
  numbers_[kDigestBytes + static_cast<std::size_t>(team_->worker())] =
      team_->stragglers().take_wait();
  const std::vector<Elements>& sums = partials(kBucketOfWorkers).sums;
  for (std::size_t p = 0; p < sums.size(); ++p) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      set_counter(sums[p], first_number() + i, p == 0 ? numbers_[i] : 0.0);
    }
  }
}

void BucketSums::read_numbers() {
  std::vector<double> waits;
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const double sum = counter(partials(kBucketOfWorkers).sums[0], first_number() + i);
    if (i >= kDigestBytes) {
      waits.push_back(sum);
    } else if (sum != numbers_[i] * team_->num_workers()) {
      digests_differ_ = true;
    }
  }
  team_->note_waits(waits);
}

void BucketSums::submit_buckets(bool all) {
  MutexLock lock(mutex_);
  for (; next_to_give_ < buckets_.size(); ++next_to_give_) {
    const std::size_t next = next_to_give_;
    if (!all && !(buckets_[next].summed && (!gpus_ || gpus_->is_on_host(next)))) return;
    if (all && gpus_) gpus_->wait_for_host(next);
    submit_bucket(next);
  }
}

void BucketSums::submit_bucket(std::size_t bucket) {
  // If only shards of sums are kept, the full sums of all buckets should not exist at once.
  constexpr std::size_t kMostGiven = 2;
  if (gives_shards() && bucket >= kMostGiven) collect_early(bucket - kMostGiven);
  const TraceSpan span("give", "communication", {{"bucket", static_cast<std::int64_t>(bucket)}});
  std::optional<DType> wire;
  if (given_.compresses(bucket)) wire = wire_type(given_.residuals->compression());
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const StragglerWatch::Waiting waiting(team_->stragglers());
  buckets_[bucket].over_workers = team_->sums().start_all_reduce(
      partials(bucket).sums, {.name = plan.name, .id = plan.id}, wire);
  if (cpus_) cpus_->start_scattered(bucket, wire);
}

void BucketSums::join_workers() {
  {
    const TraceSpan span("workers", "communication");
    submit_buckets(true);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!buckets_[b].taken) collect_bucket(b);
    }
  }
  if (gpus_) gpus_->join();
  if (digests_differ_) {
    team_->compare_notes();
  } else if (digest_ != 0) {
    team_->check()->clear();
  }
  if (given_.checks()) share_findings();
}

void BucketSums::collect_bucket(std::size_t bucket) {
  wait_for(buckets_[bucket].over_workers, *team_);
  if (bucket == kBucketOfWorkers) read_numbers();
  const Elements sums = partials(bucket).sums[0];
  std::size_t place = partials(bucket).first_counter;
  for (const BucketPlan::Item& item : given_.bucket(bucket).items) {
    take_kind(bucket, item, counter(sums, place), counter(sums, place + 1));
    place += kCountersPerItem;
  }
  cpus_ ? cpus_->take(bucket) : gpus_->take(bucket);
}

/// Reads a bucket's result early, unless it contains slices, whose exchange needs more messages in
/// a fixed order.
void BucketSums::collect_early(std::size_t bucket) {
  wait_for(buckets_[bucket].over_workers, *team_);
  if (has_slices(bucket)) return;
  collect_bucket(bucket);
  buckets_[bucket].taken = true;
}

bool BucketSums::has_slices(std::size_t bucket) {
  const HostPartials& partial = partials(bucket);
  for (std::size_t i = 0; i < given_.bucket(bucket).items.size(); ++i) {
    const std::size_t place = partial.first_counter + kCountersPerItem * i + 1;
    if (counter(partial.sums[0], place) > 0.0) return true;
  }
  return false;
}

void BucketSums::take_kind(std::size_t bucket, const BucketPlan::Item& item, double num_dense,
                           double num_sparse) {
  const Variable& variable = given_.variables[item.variable];
  GradientKind& kind = given_.kinds[item.variable];
  if (kind == GradientKind::kNone && num_dense + num_sparse > 0.0) {
    log_warning_once(concat("Variable '", variable.name(),
                            "' has no gradient on the replicas of worker ", team_->worker(),
                            " but has one on others; the missing gradients count as zeros"));
  }
  if (num_dense > 0.0 && num_sparse > 0.0) {
    // Workers that had only slices have contributed zeros.
    if (given_.compresses(bucket)) {
      fail(ErrorCode::kUnimplemented, "compression ", to_string(given_.residuals->compression()),
           ": Variable '", variable.name(), "' has slices on some replicas and dense gradients on ",
           "others; expected one kind; use WireCompression::kNone");
    }
    if (gives_shards()) {
      fail(ErrorCode::kUnimplemented, "Variable '", variable.name(),
           "' has slices on some workers and dense gradients on others, but replicas have "
           "already freed the gradients; expected one kind; use FullyShardedOptions::stage = 1");
    }
    given_.make_dense(item.variable);
  }
  if (num_dense > 0.0) {
    kind = GradientKind::kDense;
    if (num_sparse > 0.0) repeat(item, bucket);
  } else if (num_sparse > 0.0) {
    given_.sum_slices(item.variable, slices_of_all_replicas(item.variable));
    kind = GradientKind::kSparse;
  }
}

void BucketSums::repeat(const BucketPlan::Item& item, std::size_t bucket) {
  const std::vector<Elements> again = cpus_ ? cpus_->repeat(item, bucket) : gpus_->repeat(bucket);
  if (again.empty()) return;
  const std::string name = concat("mixed gradients of ", given_.variables[item.variable].name());
  const StragglerWatch::Waiting waiting(team_->stragglers());
  team_->sums().start_all_reduce(again, {.name = name}).wait();
}

std::vector<IndexedSlices> BucketSums::slices_of_all_replicas(std::size_t variable) {
  ReplicaValues local;
  for (IndexedSlices& slices : given_.slices_of(variable)) local.push_back({std::move(slices)});
  std::vector<IndexedSlices> all;
  const std::string name = concat("slices of ", given_.variables[variable].name());
  for (const std::vector<Gradient>& replica : team_->gather(local, name)) {
    all.push_back(replica.at(0).slices());
  }
  return all;
}

/// Agrees with all workers on the lowest position of a non-finite value. All workers have the same
/// sums, but only some may know which replica caused the value.
void BucketSums::share_findings() {
  const auto& own = given_.non_finite.lowest();
  if (!own) return;
  // A worker that found the non-finite value only in the sum sends nothing, so that a replica named
  // by another worker takes precedence.
  const std::string text = own->replica == NonFiniteValue::kSum
                               ? std::string()
                               : concat(own->variable, " ", own->index, " ", own->replica);
  NonFiniteFindings findings;
  for (const std::string& each : team_->gather_texts(text, "gradients that are not finite")) {
    NonFiniteValue value;
    std::istringstream place(each);
    if (place >> value.variable >> value.index >> value.replica) findings.note(value);
  }
  if (findings.lowest()) given_.non_finite.replace(*findings.lowest());
}

}  // namespace tutti::internal

// Sums of buckets in CPU memory: their storage, and the addition of slices.

namespace tutti::internal {
namespace {

/// Calls visitor(shard, device) for each replica's shard of a sharded variable. If the variable is
/// not sharded, calls it once, with the whole variable and the first device.
template <class Visitor>
void for_shards(const BucketInputs& given, const BucketPlan::Item& item, const Visitor& visitor) {
  const ReplicaShards* const cut = shards_of(given.variables[item.variable]);
  const std::vector<Device>& devices = given.services.replica_devices;
  if (!cut) return visitor(Shard{0, static_cast<std::int64_t>(item.count)}, devices.front());
  for (std::size_t r = 0; r < devices.size(); ++r) {
    visitor(cut->shard(static_cast<int>(r)), devices[r]);
  }
}

Elements elements_of(MutableTensor& flat) {
  return {flat.data(), static_cast<std::size_t>(flat.num_elements()), flat.dtype()};
}

/// Zeroes the padding and the elements of items without a dense gradient, because the reduction
/// includes both.
void zero_unused(const BucketInputs& given, std::size_t bucket, const Elements& buffer) {
  const std::vector<BucketPlan::Item>& items = given.bucket(bucket).items;
  const std::size_t size = size_of(buffer.dtype);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool is_dense = given.kinds[items[i].variable] == GradientKind::kDense;
    const std::size_t begin = items[i].first + (is_dense ? items[i].count : 0);
    const std::size_t end = i + 1 < items.size() ? items[i + 1].first : given.bucket(bucket).count;
    if (begin < end) std::memset(buffer.data + begin * size, 0, (end - begin) * size);
  }
}

}  // namespace

CpuSums::CpuSums(BucketInputs& given)
    : given_(given),
      gives_shards_(std::ranges::any_of(given.variables, shards_of)),
      all_{0, static_cast<int>(given.num_replicas)},
      buckets_(given.plan->buckets.size()),
      shards_(given.variables.size()) {
  if (!given.team) return;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].partials.first_counter = given.bucket(b).count;
    plan_scattered(b);
  }
}

void CpuSums::plan_scattered(std::size_t bucket) {
  const std::vector<BucketPlan::Item>& items = given_.bucket(bucket).items;
  if (given_.checks() || !shards_of(given_.variables[items.front().variable])) return;
  Scattered& state = buckets_[bucket].scattered;
  std::size_t place = 0;
  for (std::size_t w = 0; w < static_cast<std::size_t>(given_.team->num_workers()); ++w) {
    const std::size_t begin = place;
    std::vector<std::size_t>& places = state.places.emplace_back();
    for (const BucketPlan::Item& item : items) {
      places.push_back(place);
      place += shards_of(given_.variables[item.variable])->counts_of_workers()[w];
    }
    state.counts.push_back(place - begin);
  }
  state.name = concat("parts of ", given_.bucket(bucket).name);
  buckets_[bucket].partials.first_counter = 0;
}

std::span<const CanonicalNode> CpuSums::nodes() const {
  return given_.team ? given_.team->sums().nodes() : std::span(&all_, 1);
}

DType CpuSums::sum_dtype(std::size_t bucket) const {
  const DType dtype = given_.bucket(bucket).dtype;
  return given_.team ? PartialSums::sum_dtype(dtype) : dtype;
}

std::vector<SliceRange> CpuSums::begin(std::size_t bucket) {
  const bool has_dense = given_.has_dense(bucket);
  if (is_scattered(bucket)) {
    begin_scattered(bucket);
  } else if (gives_shards_ && !given_.team) {
    begin_shards(bucket);
  } else if (given_.team || has_dense) {
    begin_whole(bucket);
  }
  if (!has_dense) return {};
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  return cut_slices(plan.count, size_of(plan.dtype),
                    given_.services.ops.sliceable() ? static_cast<int>(given_.num_replicas) : 1);
}

void CpuSums::begin_shards(std::size_t bucket) {
  const DType dtype = given_.bucket(bucket).dtype;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    for_shards(given_, piece.item, [&](const Shard& shard, Device device) {
      MutableTensor& sum =
          shards_[piece.item.variable].emplace_back(Shape{shard.count}, dtype, device);
      const std::size_t first = piece.item.first + static_cast<std::size_t>(shard.first);
      buckets_[bucket].places.push_back(
          {first, first + static_cast<std::size_t>(shard.count), {sum.data()}});
    });
  });
}

void CpuSums::begin_whole(std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  SumPlace whole{0, plan.count};
  for (std::size_t n = 0; n < nodes().size(); ++n) {
    if (WorkerTeam* const team = given_.team) {
      const std::size_t count = plan.count + given_.plan->num_counters(bucket, team->num_workers());
      state.flat.push_back(team->sums().make_buffer(count, sum_dtype(bucket)));
      state.partials.sums.push_back(elements_of(state.flat.back()));
      zero_unused(given_, bucket, state.partials.sums.back());
    } else {
      state.flat.emplace_back(Shape{static_cast<std::int64_t>(plan.count)}, plan.dtype,
                              given_.services.replica_devices.front());
    }
    whole.sums.push_back(state.flat.back().data());
  }
  state.places = {whole};
}

void CpuSums::begin_scattered(std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  PartialSums& sums = given_.team->sums();
  const DType dtype = sum_dtype(bucket);
  std::size_t count = 0;
  for (const std::size_t each : state.scattered.counts) count += each;
  const std::size_t num_counters = given_.plan->num_counters(bucket, given_.team->num_workers());
  for (std::size_t n = 0; n < nodes().size(); ++n) {
    state.scattered.partials.push_back(sums.make_buffer(count, dtype));
    state.flat.emplace_back(Shape{static_cast<std::int64_t>(num_counters)}, dtype, Device{});
    state.partials.sums.push_back(elements_of(state.flat.back()));
  }
  const auto own = static_cast<std::size_t>(given_.team->worker());
  state.scattered.own = sums.make_buffer(state.scattered.counts[own], dtype);
  for (const BucketPlan::Item& item : given_.bucket(bucket).items) {
    const bool is_dense = given_.kinds[item.variable] == GradientKind::kDense;
    for_owners(bucket, item,
               [&](std::size_t, std::size_t at, std::size_t first, std::size_t length) {
                 SumPlace place{item.first + first, item.first + first + length};
                 for (MutableTensor& partial : state.scattered.partials) {
                   std::byte* const memory = partial.data() + at * size_of(dtype);
                   place.sums.push_back(memory);
                   if (!is_dense) std::fill_n(memory, length * size_of(dtype), std::byte{});
                 }
                 if (is_dense) state.places.push_back(place);
               });
  }
}

void CpuSums::reduce(std::size_t bucket, SliceRange slice) {
  const ReplicaServices& services = given_.services;
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const DType dtype = sum_dtype(bucket);
  SegmentedSum sum{.id = plan.id,
                   .name = plan.name,
                   .dtype = plan.dtype,
                   .sum_dtype = dtype,
                   .replicas = services.replica_devices,
                   .begin = slice.begin,
                   .end = slice.end,
                   .nodes = nodes()};
  auto place = buckets_[bucket].places.begin();
  given_.for_dense_pieces(bucket, slice, [&](const Piece& piece) {
    for (std::size_t begin = piece.begin; begin < piece.end;) {
      while (place->end <= begin) ++place;
      const std::size_t end = std::min(piece.end, place->end);
      sum.segments.push_back({piece.item.variable, begin, end});
      for (std::byte* const first : place->sums) {
        sum.sums.push_back(first + (begin - place->begin) * size_of(dtype));
      }
      begin = end;
    }
  });
  const auto piece_of = [this, bucket](const SegmentedSum::Segment& block) {
    return Piece{given_.item_of(block.variable), bucket, block.begin, block.end};
  };
  sum.values = [&](std::size_t replica, const SegmentedSum::Segment& block, std::byte* copy) {
    return given_.prepared(replica, piece_of(block), copy);
  };
  if (given_.checks() && !given_.team) {  // a team's sum is checked later
    sum.check = [&](const SegmentedSum::Segment& block, const std::byte* values) {
      if (count_non_finite(dtype, values, block.count()) == 0) return;
      given_.note_first(piece_of(block), values);
    };
  }
  sum.copies = given_.compresses(bucket);
  std::optional<MutexLock> lock;
  if (!services.ops.sliceable()) lock.emplace(services.ops_mutex);
  services.ops.sum_segments(sum, services.communication);
}

void CpuSums::end(std::size_t bucket) {
  if (!gives_shards_) return;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    for (const MutableTensor& sum : shards_[piece.item.variable]) {
      given_.kept_sums[piece.item.variable].push_back(sum.freeze());
    }
  });
  // The gradients are kept if sums over all workers are checked for non-finite values, because the
  // gradients may identify the replica that caused such a value.
  if (!given_.team || !given_.checks()) given_.release_gradients(bucket);
}

std::optional<Tensor> CpuSums::sum(std::size_t bucket, std::size_t replica) const {
  const std::vector<MutableTensor>& flat = buckets_[bucket].flat;
  if (gives_shards_ || flat.empty()) return std::nullopt;
  return flat.front().freeze().to(given_.services.replica_devices[replica]);
}

void CpuSums::start_scattered(std::size_t bucket, std::optional<DType> wire) {
  if (!is_scattered(bucket)) return;
  Scattered& state = buckets_[bucket].scattered;
  std::vector<Elements> partials;
  for (MutableTensor& each : state.partials) partials.push_back(elements_of(each));
  const CallOptions options{.name = state.name, .id = given_.bucket(bucket).id};
  state.sum = given_.team->sums().start_reduce_scatter(partials, elements_of(state.own),
                                                       state.counts, options, wire);
}

std::vector<Elements> CpuSums::repeat(const BucketPlan::Item& item, std::size_t bucket) {
  reduce(bucket, {item.first, item.first + item.count});
  std::vector<Elements> partials;
  for (const Elements& each : buckets_[bucket].partials.sums) {
    partials.push_back({each.data + item.first * size_of(each.dtype), item.count, each.dtype});
  }
  return partials;
}

void CpuSums::take(std::size_t bucket) {
  is_scattered(bucket) ? collect_scattered(bucket) : take_whole(bucket);
  if (!gives_shards_) return;
  buckets_[bucket].flat.clear();
  buckets_[bucket].partials.sums.clear();
}

void CpuSums::take_whole(std::size_t bucket) {
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  std::vector<MutableTensor>& flat = buckets_[bucket].flat;
  flat.resize(1);
  buckets_[bucket].partials.sums.resize(1);
  if (flat[0].dtype() != plan.dtype) {
    MutableTensor rounded({static_cast<std::int64_t>(plan.count)}, plan.dtype, Device{});
    narrow(reinterpret_cast<const float*>(flat[0].data()), plan.dtype, rounded.data(), plan.count);
    flat[0] = std::move(rounded);
  }
  given_.search_sum(bucket, flat[0].data());
  if (!gives_shards_) return;
  keep(bucket, flat[0].freeze(),
       [](const Piece& piece) { return static_cast<std::int64_t>(piece.item.first); });
}

void CpuSums::collect_scattered(std::size_t bucket) {
  Scattered& state = buckets_[bucket].scattered;
  wait_for(state.sum, *given_.team);
  const auto own = static_cast<std::size_t>(given_.team->worker());
  keep(bucket, state.own.freeze(), [&](const Piece& piece) {
    std::int64_t begin = 0;
    for_owners(bucket, piece.item,
               [&](std::size_t w, std::size_t place, std::size_t first, std::size_t) {
                 if (w != own) return;
                 begin = static_cast<std::int64_t>(place - state.places[w].front()) -
                         static_cast<std::int64_t>(first);
               });
    return begin;
  });
  state.partials.clear();
  state.own = MutableTensor();
}

template <class BeginOf>
void CpuSums::keep(std::size_t bucket, const Tensor& sums, const BeginOf& begin_of) {
  const DType dtype = given_.bucket(bucket).dtype;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    const std::int64_t begin = begin_of(piece);
    for_shards(given_, piece.item, [&](const Shard& shard, Device device) {
      const Tensor sum = sums.detached_rows(begin + shard.first, shard.count);
      given_.kept_sums[piece.item.variable].push_back(
          (sum.dtype() == dtype ? sum.copy() : narrowed(sum, dtype)).to(device));
    });
  });
}

template <class Visitor>
void CpuSums::for_owners(std::size_t bucket, const BucketPlan::Item& item,
                         const Visitor& visitor) const {
  const auto index = static_cast<std::size_t>(&item - given_.bucket(bucket).items.data());
  const auto counts = shards_of(given_.variables[item.variable])->counts_of_workers();
  std::size_t first = 0;
  for (std::size_t w = 0; w < counts.size(); first += counts[w++]) {
    visitor(w, buckets_[bucket].scattered.places[w][index], first, counts[w]);
  }
}

}  // namespace tutti::internal
