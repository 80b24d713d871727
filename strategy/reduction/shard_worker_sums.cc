// Sums over the workers of which each replica gets its shards.
// SPDX-License-Identifier: Apache-2.0
//
// Of a bucket whose variables are cut, a worker is sent what its replicas own, and nothing else: in
// the buffers of its partial sums the elements stand in the order of their owners, worker by worker
// (*scattered*). What all workers have to know, the counters, is a sum of its own. Where values
// that are not finite are looked for, the sum is whole, as all workers have to find the same.
#include <algorithm>

#include "strategy/reduction/worker_sums.h"
#include "tensor/half_conversion.h"

namespace tutti::internal {
namespace {

class ShardWorkerSums final : public CpuWorkerSums {
 public:
  explicit ShardWorkerSums(GivenGradients& given);
  ~ShardWorkerSums() override { wait_for_sums(); }

  std::vector<SliceRange> begin(std::size_t bucket) override;
  void reduce(std::size_t bucket, SliceRange slice) override;
  void end(std::size_t bucket) override;
  bool lets_go() const override { return true; }
  std::optional<Tensor> sum(std::size_t, std::size_t) const override { return std::nullopt; }
  std::optional<Tensor> sum_of(std::size_t variable, std::size_t replica) const override;

 private:
  /// Of a bucket that is scattered.
  struct Scattered {
    std::vector<std::size_t> counts;               // by worker
    std::vector<std::vector<std::size_t>> places;  // by worker and item, of the worker's elements
    std::vector<MutableTensor> partials;           // as in CpuWorkerSums
    MutableTensor own;                             // counts[worker]: the sum
    std::string name;
    CollectiveHandle sum;
  };

  bool is_scattered(std::size_t bucket) const { return !scattered_[bucket].counts.empty(); }
  void given_away(std::size_t bucket, std::optional<DType> wire) override;
  void take(std::size_t bucket) override;
  void take_whole(std::size_t bucket);
  void take_scattered(std::size_t bucket);
  /// Calls visitor(worker, place, first, count): where the worker's elements of the item stand in
  /// the buffer, and which ones of the variable they are.
  template <class Visitor>
  void for_owners(std::size_t bucket, const BucketPlan::Item& item, const Visitor& visitor) const;

  std::vector<std::vector<Tensor>> shards_;  // per variable: of each replica here, or the whole
  std::vector<Scattered> scattered_;         // per bucket
};

ShardWorkerSums::ShardWorkerSums(GivenGradients& given)
    : CpuWorkerSums(given), shards_(given.variables.size()), scattered_(buckets_.size()) {
  for (std::size_t b = 0; b < buckets_.size() && !given.checks(); ++b) {
    const std::vector<BucketPlan::Item>& items = given.bucket(b).items;
    if (!shards_of(given.variables[items.front().variable])) continue;
    Scattered& state = scattered_[b];
    std::size_t place = 0;
    for (std::size_t w = 0; w < static_cast<std::size_t>(team_.num_workers()); ++w) {
      const std::size_t begin = place;
      std::vector<std::size_t>& places = state.places.emplace_back();
      for (const BucketPlan::Item& item : items) {
        places.push_back(place);
        place += shards_of(given.variables[item.variable])->counts_of_workers()[w];
      }
      state.counts.push_back(place - begin);
    }
    state.name = concat("parts of ", buckets_[b].name);
    buckets_[b].first_counter = 0;
  }
}

template <class Visitor>
void ShardWorkerSums::for_owners(std::size_t bucket, const BucketPlan::Item& item,
                                 const Visitor& visitor) const {
  const auto index = static_cast<std::size_t>(&item - given_.bucket(bucket).items.data());
  const auto counts = shards_of(given_.variables[item.variable])->counts_of_workers();
  std::size_t first = 0;
  for (std::size_t w = 0; w < counts.size(); first += counts[w++]) {
    visitor(w, scattered_[bucket].places[w][index], first, counts[w]);
  }
}

std::vector<SliceRange> ShardWorkerSums::begin(std::size_t bucket) {
  if (!is_scattered(bucket)) return CpuWorkerSums::begin(bucket);
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  Scattered& state = scattered_[bucket];
  const DType dtype = WorkerTeam::sum_dtype(plan.dtype);
  std::size_t count = 0;
  for (const std::size_t each : state.counts) count += each;
  const std::size_t num_counters = given_.plan->num_counters(bucket, team_.num_workers());
  for (std::size_t p = 0; p < team_.partial_sums().size(); ++p) {
    state.partials.push_back(team_.make_buffer(count, dtype));
    flat_[bucket].emplace_back(Shape{static_cast<std::int64_t>(num_counters)}, dtype, Device{});
    buckets_[bucket].partials.push_back(elements_of(flat_[bucket].back()));
  }
  const auto own = static_cast<std::size_t>(team_.worker());
  state.own = team_.make_buffer(state.counts[own], dtype);
  count_kinds(bucket);
  for (const BucketPlan::Item& item : plan.items) {
    if (given_.kinds[item.variable] == GradientKind::kDense) continue;
    for_owners(bucket, item, [&](std::size_t, std::size_t place, std::size_t, std::size_t length) {
      const std::size_t size = size_of(dtype);
      for (MutableTensor& partial : state.partials) {
        std::fill_n(partial.data() + place * size, length * size, std::byte{});
      }
    });
  }
  return cut_slices(given_.has_dense(bucket) ? plan.count : 0, size_of(plan.dtype),
                    static_cast<int>(given_.num_replicas));
}

void ShardWorkerSums::reduce(std::size_t bucket, SliceRange slice) {
  if (!is_scattered(bucket)) return CpuWorkerSums::reduce(bucket, slice);
  given_.for_dense_pieces(bucket, slice, [&](const Piece& piece) {
    for_owners(bucket, piece.item,
               [&](std::size_t, std::size_t place, std::size_t first, std::size_t count) {
                 first += piece.item.first;
                 const Piece own{piece.item, bucket, std::max(piece.begin, first),
                                 std::min(piece.end, first + count)};
                 if (own.begin >= own.end) return;
                 std::vector<Elements> sums;
                 for (MutableTensor& partial : scattered_[bucket].partials) {
                   const DType dtype = partial.dtype();
                   sums.push_back({partial.data() + place * size_of(dtype), count, dtype});
                 }
                 TreeAdder adder(given_, bucket, team_.partial_sums(), sums, first);
                 adder.add(own, false);
               });
  });
}

void ShardWorkerSums::end(std::size_t bucket) {
  if (!given_.checks()) {  // whose fault a value is shows in gradients
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      for (std::size_t r = 0; r < given_.num_replicas; ++r) {
        given_.of(r, piece.item.variable) = Gradient();
      }
    });
  }
  WorkerSums::end(bucket);
}

void ShardWorkerSums::given_away(std::size_t bucket, std::optional<DType> wire) {
  if (!is_scattered(bucket)) return;
  Scattered& state = scattered_[bucket];
  std::vector<Elements> partials;
  for (MutableTensor& each : state.partials) partials.push_back(elements_of(each));
  state.sum =
      team_.start_sum_of_parts(partials, elements_of(state.own), state.counts, state.name, wire);
}

void ShardWorkerSums::take(std::size_t bucket) {
  if (is_scattered(bucket)) {
    take_scattered(bucket);
  } else {
    take_whole(bucket);
  }
  flat_[bucket].clear();
  buckets_[bucket].partials.clear();
}

void ShardWorkerSums::take_whole(std::size_t bucket) {
  CpuWorkerSums::take(bucket);
  const Tensor whole = flat_[bucket].front().freeze();
  const std::vector<Device>& devices = given_.services.replica_devices;
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    const auto copy = [&](const Shard& shard, Device device) {
      const std::int64_t first = static_cast<std::int64_t>(piece.item.first) + shard.first;
      shards_[piece.item.variable].push_back(
          whole.detached_rows(first, shard.count).copy().to(device));
    };
    const ReplicaShards* const cut = shards_of(given_.variables[piece.item.variable]);
    if (!cut) return copy({0, static_cast<std::int64_t>(piece.item.count)}, devices.front());
    for (std::size_t r = 0; r < devices.size(); ++r) {
      copy(cut->shard(static_cast<int>(r)), devices[r]);
    }
  });
}

void ShardWorkerSums::take_scattered(std::size_t bucket) {
  Scattered& state = scattered_[bucket];
  {
    const StragglerWatch::Waiting waiting(team_.stragglers());
    state.sum.wait();
  }
  const DType dtype = given_.bucket(bucket).dtype;
  const std::vector<Device>& devices = given_.services.replica_devices;
  const Tensor sums = state.own.freeze();
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    const ReplicaShards& cut = *shards_of(given_.variables[piece.item.variable]);
    for_owners(
        bucket, piece.item, [&](std::size_t w, std::size_t place, std::size_t first, std::size_t) {
          if (w != static_cast<std::size_t>(team_.worker())) return;
          place -= scattered_[bucket].places[w].front();
          for (std::size_t r = 0; r < devices.size(); ++r) {
            const Shard shard = cut.shard(static_cast<int>(r));
            const Tensor sum = sums.detached_rows(
                static_cast<std::int64_t>(place) + shard.first - static_cast<std::int64_t>(first),
                shard.count);
            shards_[piece.item.variable].push_back(
                (sum.dtype() == dtype ? sum.copy() : narrowed(sum, dtype)).to(devices[r]));
          }
        });
  });
  state.partials.clear();
  state.own = MutableTensor();
}

std::optional<Tensor> ShardWorkerSums::sum_of(std::size_t variable, std::size_t replica) const {
  if (given_.kinds[variable] != GradientKind::kDense) return std::nullopt;
  const Variable& of = given_.variables[variable];
  if (shards_of(of)) return shards_[variable][replica];
  return shards_[variable]
      .front()
      .detached_reshape(of.shape())
      .to(given_.services.replica_devices[replica]);
}

}  // namespace

std::unique_ptr<BucketSums> shard_worker_sums(GivenGradients& given) {
  return std::make_unique<ShardWorkerSums>(given);
}

}  // namespace tutti::internal
