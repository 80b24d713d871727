// Buckets that are summed over workers, too.
// SPDX-License-Identifier: Apache-2.0
//
// A bucket's *partial sums* are what the team wants of this worker (PartialSums), in
// buffers of PartialSums::sum_dtype(). Behind the bucket's elements stand two *counters* per
// variable: how many replicas have a dense gradient, and how many have slices. They are summed like
// the rest, so that every worker learns what the others have without another message. So are,
// behind the counters of one bucket, the bytes of the worker's digest (consistency_check.h), which
// are alike if each sum is the number of workers times the own byte, and what each worker has
// waited (straggler_watch.h); the others leave 0. What only some workers would do is decided by
// sums, which are equal everywhere.
#include "strategy/reduction/worker_sums.h"

#include <algorithm>
#include <sstream>

#include "tensor/half_conversion.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kCountersPerItem = BucketPlan::kCountersPerItem;
constexpr std::size_t kBucketOfWorkers = BucketPlan::kBucketOfWorkers;
constexpr std::size_t kDigestBytes = BucketPlan::kDigestBytes;

/// A counter: float32 or float64, both exact for any number of replicas.
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

}  // namespace

WorkerSums::WorkerSums(GivenGradients& given)
    : BucketSums(given),
      team_(*given.services.team),
      buckets_(given.plan->buckets.size()),
      summed_(buckets_.size()),
      taken_(buckets_.size()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const BucketPlan::Bucket& plan = given.bucket(b);
    if (!is_floating(plan.dtype)) {
      fail(ErrorCode::kUnimplemented, "gradients of ", plan.dtype,
           " with several workers; expected a floating type; try a cast");
    }
    buckets_[b].name = plan.name;
    buckets_[b].first_counter = plan.count;
  }
}

void WorkerSums::wait_for_sums() {
  for (Bucket& bucket : buckets_) bucket.sum = {};
}

void WorkerSums::count_kinds(std::size_t bucket) {
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  const Bucket& state = buckets_[bucket];
  for (std::size_t p = 0; p < state.partials.size(); ++p) {
    const CanonicalNode node = team_.sums().nodes()[p];
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      double dense = 0.0, sparse = 0.0;
      for (int r = node.first; r < node.first + node.count; ++r) {
        const GradientKind kind =
            given_.given_kind(static_cast<std::size_t>(r), plan.items[i].variable);
        dense += kind == GradientKind::kDense ? 1.0 : 0.0;
        sparse += kind == GradientKind::kSparse ? 1.0 : 0.0;
      }
      const std::size_t first = state.first_counter + kCountersPerItem * i;
      set_counter(state.partials[p], first, dense);
      set_counter(state.partials[p], first + 1, sparse);
    }
  }
  if (bucket == kBucketOfWorkers) tell_numbers();
}

std::size_t WorkerSums::first_number() const {
  return buckets_[kBucketOfWorkers].first_counter +
         kCountersPerItem * given_.bucket(kBucketOfWorkers).items.size();
}

void WorkerSums::tell_numbers() {
  numbers_.assign(kDigestBytes + static_cast<std::size_t>(team_.num_workers()), 0.0);
  digest_ = team_.check()->digest();
  // As parts of 256: exact in 16 bits and in any order, and no larger than the other counters.
  for (std::size_t i = 0; i < kDigestBytes; ++i) {
    numbers_[i] = static_cast<double>((digest_ >> (8 * i)) & 0xff) / 256.0;
  }
  numbers_[kDigestBytes + static_cast<std::size_t>(team_.worker())] =
      team_.stragglers().take_wait();
  const std::vector<Elements>& partials = buckets_[kBucketOfWorkers].partials;
  for (std::size_t p = 0; p < partials.size(); ++p) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      set_counter(partials[p], first_number() + i, p == 0 ? numbers_[i] : 0.0);
    }
  }
}

void WorkerSums::take_numbers() {
  std::vector<double> waits;
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const double sum = counter(buckets_[kBucketOfWorkers].partials[0], first_number() + i);
    if (i >= kDigestBytes) {
      waits.push_back(sum);
    } else if (sum != numbers_[i] * team_.num_workers()) {
      digests_differ_ = true;
    }
  }
  team_.note_waits(waits);
}

void WorkerSums::end(std::size_t bucket) {
  {
    MutexLock lock(mutex_);
    summed_[bucket] = true;
  }
  give(false);
}

void WorkerSums::give(bool all) {
  MutexLock lock(mutex_);
  for (; next_to_give_ < buckets_.size(); ++next_to_give_) {
    if (!all && !(summed_[next_to_give_] && can_go(next_to_give_))) return;
    if (all) make_ready(next_to_give_);
    give_bucket(next_to_give_);
  }
}

void WorkerSums::give_bucket(std::size_t bucket) {
  // Sums that are kept in parts alone are not to be there as wholes at once.
  constexpr std::size_t kMostGiven = 2;
  if (gives_shards() && bucket >= kMostGiven) take_early(bucket - kMostGiven);
  Bucket& state = buckets_[bucket];
  const TraceSpan span("give", "communication", {{"bucket", static_cast<std::int64_t>(bucket)}});
  std::optional<DType> wire;
  if (given_.compresses(bucket)) wire = wire_type(given_.residuals->compression());
  const CallOptions options{.name = state.name, .id = given_.bucket(bucket).id};
  const StragglerWatch::Waiting waiting(team_.stragglers());
  state.sum = team_.sums().start_all_reduce(state.partials, options, wire);
  given_away(bucket, wire);
}

void WorkerSums::wait(CollectiveHandle& sum) {
  const StragglerWatch::Waiting waiting(team_.stragglers());
  sum.wait();
}

void WorkerSums::join() {
  {
    const TraceSpan span("workers", "communication");
    give(true);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!taken_[b]) take_bucket(b);
    }
  }
  finish();
  if (digests_differ_) {
    team_.compare_notes();
  } else if (digest_ != 0) {
    team_.check()->clear();
  }
  if (given_.checks() && !given_.zeroes()) share_findings();
}

void WorkerSums::take_bucket(std::size_t bucket) {
  Bucket& state = buckets_[bucket];
  wait(state.sum);
  if (bucket == kBucketOfWorkers) take_numbers();
  std::size_t place = state.first_counter;
  for (const BucketPlan::Item& item : given_.bucket(bucket).items) {
    take_item(bucket, item, counter(state.partials[0], place),
              counter(state.partials[0], place + 1));
    place += kCountersPerItem;
  }
  take(bucket);
}

/// Unless that takes more messages, for which the workers have an order.
void WorkerSums::take_early(std::size_t bucket) {
  wait(buckets_[bucket].sum);
  if (has_slices(bucket)) return;
  take_bucket(bucket);
  taken_[bucket] = 1;
}

bool WorkerSums::has_slices(std::size_t bucket) const {
  const Bucket& state = buckets_[bucket];
  for (std::size_t i = 0; i < given_.bucket(bucket).items.size(); ++i) {
    const std::size_t place = state.first_counter + kCountersPerItem * i + 1;
    if (counter(state.partials[0], place) > 0.0) return true;
  }
  return false;
}

void WorkerSums::take_item(std::size_t bucket, const BucketPlan::Item& item, double num_dense,
                           double num_sparse) {
  const Variable& variable = given_.variables[item.variable];
  GradientKind& kind = given_.kinds[item.variable];
  if (kind == GradientKind::kNone && num_dense + num_sparse > 0.0) {
    log_warning_once(concat("Variable '", variable.name(),
                            "' has no gradient on the replicas of worker ", team_.worker(),
                            " but has one on others; zeros are used there"));
  }
  if (num_dense > 0.0 && num_sparse > 0.0) {
    // Workers that had slices alone have given zeros.
    if (given_.compresses(bucket)) {
      fail(ErrorCode::kUnimplemented, "compression ", to_string(given_.residuals->compression()),
           ": Variable '", variable.name(), "' has slices on some replicas and dense gradients on ",
           "others; expected one kind; try WireCompression::kNone");
    }
    if (gives_shards()) {
      fail(ErrorCode::kUnimplemented, "Variable '", variable.name(),
           "' has slices on some workers and dense gradients on others, which replicas have let "
           "go of; expected one kind; try stage = 1");
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

void WorkerSums::sum_again(const BucketPlan::Item& item, std::span<const Elements> partials) {
  const std::string name = concat("mixed gradients of ", given_.variables[item.variable].name());
  const StragglerWatch::Waiting waiting(team_.stragglers());
  team_.sums().start_all_reduce(partials, {.name = name}).wait();
}

std::vector<IndexedSlices> WorkerSums::slices_of_all_replicas(std::size_t variable) {
  ReplicaValues local;
  for (IndexedSlices& slices : given_.slices_of(variable)) local.push_back({std::move(slices)});
  std::vector<IndexedSlices> all;
  const std::string name = concat("slices of ", given_.variables[variable].name());
  for (const std::vector<Gradient>& replica : team_.gather(local, name)) {
    all.push_back(replica.at(0).slices());
  }
  return all;
}

void WorkerSums::round_sum(std::size_t bucket, const Elements& rounded) {
  std::vector<Elements>& partials = buckets_[bucket].partials;
  const Elements sum = partials[0];
  partials.resize(1);
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  if (plan.dtype == sum.dtype) return;
  partials[0] = rounded;
  narrow(reinterpret_cast<const float*>(sum.data), plan.dtype, rounded.data, plan.count);
}

void WorkerSums::search_sum(std::size_t bucket) {
  if (!given_.checks()) return;
  const Elements sum = buckets_[bucket].partials[0];
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    std::byte* const values = sum.data + piece.begin * size_of(sum.dtype);
    if (count_non_finite(sum.dtype, values, piece.count()) == 0) return;
    given_.note_first(piece, values);
    if (given_.zeroes()) clear_non_finite(sum.dtype, values, piece.count());
  });
}

/// Every worker found the same sums, but may know different replicas whose fault they are: the
/// lowest place of all is told to all.
void WorkerSums::share_findings() {
  const auto& own = given_.non_finite.lowest();
  if (!own) return;
  // A replica's fault is lower than a sum's everywhere, also where only the sum shows it.
  const std::string text = own->replica == NonFiniteValue::kSum
                               ? std::string()
                               : concat(own->variable, " ", own->index, " ", own->replica);
  NonFiniteFindings findings;
  for (const std::string& each : team_.gather_texts(text, "gradients that are not finite")) {
    NonFiniteValue value;
    std::istringstream place(each);
    if (place >> value.variable >> value.index >> value.replica) findings.note(value);
  }
  if (findings.lowest()) given_.non_finite.replace(*findings.lowest());
}

namespace {

/// Partial sums in host memory, added straight from the gradients.
///
/// Of a bucket whose variables are cut over the replicas, a worker is sent what its replicas own,
/// and nothing else: in the buffers of its partial sums the elements stand in the order of their
/// owners, worker by worker (*scattered*). What all workers have to know, the counters, is a sum of
/// its own. Where values that are not finite are looked for, the sum is whole, as all workers have
/// to find the same.
class CpuWorkerSums final : public WorkerSums {
 public:
  explicit CpuWorkerSums(GivenGradients& given)
      : WorkerSums(given),
        gives_shards_(std::ranges::any_of(given.variables, shards_of)),
        flat_(buckets_.size()),
        places_(buckets_.size()),
        scattered_(buckets_.size()) {
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
  ~CpuWorkerSums() override { wait_for_sums(); }

  std::vector<SliceRange> begin(std::size_t bucket) override {
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    is_scattered(bucket) ? begin_scattered(bucket) : begin_whole(bucket);
    return cut_slices(given_.has_dense(bucket) ? plan.count : 0, size_of(plan.dtype),
                      static_cast<int>(given_.num_replicas));
  }
  void reduce(std::size_t bucket, SliceRange slice) override {
    sum_slice(given_, bucket, slice, PartialSums::sum_dtype(given_.bucket(bucket).dtype),
              team_.sums().nodes(), places_[bucket], false);
  }
  void end(std::size_t bucket) override {
    // Whose fault a value is shows in gradients.
    if (gives_shards_ && !given_.checks()) given_.let_go(bucket);
    WorkerSums::end(bucket);
  }
  bool gives_shards() const override { return gives_shards_; }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    if (gives_shards_) return std::nullopt;
    return flat_[bucket].front().freeze().to(given_.services.replica_devices[replica]);
  }

 private:
  /// Of a bucket that is scattered.
  struct Scattered {
    std::vector<std::size_t> counts;               // by worker
    std::vector<std::vector<std::size_t>> places;  // by worker and item, of the worker's elements
    std::vector<MutableTensor> partials;           // without counters
    MutableTensor own;                             // counts[worker]: the sum
    std::string name;
    CollectiveHandle sum;
  };

  bool is_scattered(std::size_t bucket) const { return !scattered_[bucket].counts.empty(); }
  void begin_whole(std::size_t bucket) {
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    const std::size_t count = plan.count + given_.plan->num_counters(bucket, team_.num_workers());
    SumPlace whole{0, plan.count};
    for (std::size_t p = 0; p < team_.sums().nodes().size(); ++p) {
      flat_[bucket].push_back(team_.sums().make_buffer(count, PartialSums::sum_dtype(plan.dtype)));
      buckets_[bucket].partials.push_back(elements_of(flat_[bucket].back()));
      whole.sums.push_back(flat_[bucket].back().data());
    }
    places_[bucket] = {whole};
    count_kinds(bucket);
    given_.zero_unused(bucket, buckets_[bucket].partials);
  }
  void begin_scattered(std::size_t bucket) {
    Scattered& state = scattered_[bucket];
    const DType dtype = PartialSums::sum_dtype(given_.bucket(bucket).dtype);
    std::size_t count = 0;
    for (const std::size_t each : state.counts) count += each;
    const std::size_t num_counters = given_.plan->num_counters(bucket, team_.num_workers());
    for (std::size_t p = 0; p < team_.sums().nodes().size(); ++p) {
      state.partials.push_back(team_.sums().make_buffer(count, dtype));
      flat_[bucket].emplace_back(Shape{static_cast<std::int64_t>(num_counters)}, dtype, Device{});
      buckets_[bucket].partials.push_back(elements_of(flat_[bucket].back()));
    }
    const auto own = static_cast<std::size_t>(team_.worker());
    state.own = team_.sums().make_buffer(state.counts[own], dtype);
    count_kinds(bucket);
    places_[bucket].clear();
    for (const BucketPlan::Item& item : given_.bucket(bucket).items) {
      const bool is_dense = given_.kinds[item.variable] == GradientKind::kDense;
      const auto note = [&](std::size_t, std::size_t at, std::size_t first, std::size_t length) {
        SumPlace place{item.first + first, item.first + first + length};
        for (MutableTensor& partial : state.partials) {
          std::byte* const memory = partial.data() + at * size_of(dtype);
          place.sums.push_back(memory);
          if (!is_dense) std::fill_n(memory, length * size_of(dtype), std::byte{});
        }
        if (is_dense) places_[bucket].push_back(place);
      };
      for_owners(bucket, item, note);
    }
  }
  void given_away(std::size_t bucket, std::optional<DType> wire) override {
    if (!is_scattered(bucket)) return;
    Scattered& state = scattered_[bucket];
    std::vector<Elements> partials;
    for (MutableTensor& each : state.partials) partials.push_back(elements_of(each));
    const CallOptions options{.name = state.name, .id = given_.bucket(bucket).id};
    state.sum = team_.sums().start_reduce_scatter(partials, elements_of(state.own), state.counts,
                                                  options, wire);
  }
  void repeat(const BucketPlan::Item& item, std::size_t bucket) override {
    reduce(bucket, {item.first, item.first + item.count});
    std::vector<Elements> partials;
    for (const Elements& each : buckets_[bucket].partials) {
      partials.push_back({each.data + item.first * size_of(each.dtype), item.count, each.dtype});
    }
    sum_again(item, partials);
  }
  /// The result alone stays.
  void take(std::size_t bucket) override {
    is_scattered(bucket) ? take_scattered(bucket) : take_whole(bucket);
    if (!gives_shards_) return;
    flat_[bucket].clear();
    buckets_[bucket].partials.clear();
  }
  void take_whole(std::size_t bucket) {
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    std::vector<MutableTensor>& flat = flat_[bucket];
    flat.resize(1);
    if (plan.dtype == flat[0].dtype()) {
      round_sum(bucket, {});
    } else {
      MutableTensor rounded({static_cast<std::int64_t>(plan.count)}, plan.dtype, Device{});
      round_sum(bucket, elements_of(rounded));
      flat[0] = std::move(rounded);
    }
    search_sum(bucket);
    if (!gives_shards_) return;
    keep(bucket, flat[0].freeze(),
         [](const Piece& piece) { return static_cast<std::int64_t>(piece.item.first); });
  }
  void take_scattered(std::size_t bucket) {
    Scattered& state = scattered_[bucket];
    wait(state.sum);
    const auto own = static_cast<std::size_t>(team_.worker());
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
  /// Copies from `sums` what replicas get of the bucket. begin_of(piece) is where the variable's
  /// first element is, or would be.
  template <class BeginOf>
  void keep(std::size_t bucket, const Tensor& sums, const BeginOf& begin_of) {
    const DType dtype = given_.bucket(bucket).dtype;
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      const std::int64_t begin = begin_of(piece);
      for_shards(piece.item, [&](const Shard& shard, Device device) {
        const Tensor sum = sums.detached_rows(begin + shard.first, shard.count);
        kept_[piece.item.variable].push_back(
            (sum.dtype() == dtype ? sum.copy() : narrowed(sum, dtype)).to(device));
      });
    });
  }
  /// Calls visitor(worker, place, first, count): where the worker's elements of the item stand in
  /// the buffer, and which ones of the variable they are.
  template <class Visitor>
  void for_owners(std::size_t bucket, const BucketPlan::Item& item, const Visitor& visitor) const {
    const auto index = static_cast<std::size_t>(&item - given_.bucket(bucket).items.data());
    const auto counts = shards_of(given_.variables[item.variable])->counts_of_workers();
    std::size_t first = 0;
    for (std::size_t w = 0; w < counts.size(); first += counts[w++]) {
      visitor(w, scattered_[bucket].places[w][index], first, counts[w]);
    }
  }

  const bool gives_shards_;                       // of variables that are cut over the replicas
  std::vector<std::vector<MutableTensor>> flat_;  // of each bucket's partial sums, with counters
  std::vector<std::vector<SumPlace>> places_;     // of each bucket's elements
  std::vector<Scattered> scattered_;              // per bucket
};

}  // namespace

std::unique_ptr<BucketSums> worker_sums(GivenGradients& given) {
  return std::make_unique<CpuWorkerSums>(given);
}

}  // namespace tutti::internal
