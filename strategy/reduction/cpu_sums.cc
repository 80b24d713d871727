// Sums of buckets in memory of CPUs: where they are, and who adds which slice.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/cpu_sums.h"

#include <algorithm>
#include <cstring>

#include "tensor/half_conversion.h"

namespace tutti::internal {
namespace {

/// Calls visitor(shard, device) for each replica's shard of a variable that is cut, or for the
/// whole of another one, on the first device.
template <class Visitor>
void for_shards(const GivenGradients& given, const BucketPlan::Item& item, const Visitor& visitor) {
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

/// Sets to zero the elements that are reduced although no dense gradient goes there.
void zero_unused(const GivenGradients& given, std::size_t bucket, const Elements& buffer) {
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

CpuSums::CpuSums(GivenGradients& given)
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
  sum.values = [&](std::size_t replica, const SegmentedSum::Segment& block, bool clean,
                   std::byte* copy) {
    return given_.prepared(replica, piece_of(block), clean && given_.zeroes(), copy);
  };
  const bool checks = given_.checks() && !given_.team;  // with a team the sum over all workers is
  if (checks) {
    sum.check = [&](const SegmentedSum::Segment& block, std::byte* values, bool clean) {
      if (count_non_finite(dtype, values, block.count()) == 0) return false;
      given_.note_first(piece_of(block), values);
      if (!given_.zeroes()) return false;
      // Finite values may have an infinite sum.
      if (clean) clear_non_finite(dtype, values, block.count());
      return !clean;
    };
  }
  sum.clean_first = given_.zeroes() && (!checks || given_.compresses(bucket));
  sum.copies = sum.clean_first || given_.compresses(bucket);
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
  // Gradients show whose fault a value is that is found in the sum over all workers.
  if (!given_.team || !given_.checks()) given_.let_go(bucket);
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
  is_scattered(bucket) ? take_scattered(bucket) : take_whole(bucket);
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

void CpuSums::take_scattered(std::size_t bucket) {
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
