// Buckets that are summed over workers, too.
// SPDX-License-Identifier: Apache-2.0
//
// A bucket's *partial sums* are what the team wants of this worker (WorkerTeam::partial_sums), in
// buffers of WorkerTeam::sum_dtype(). Behind the bucket's elements stand two *counters* per
// variable: how many replicas have a dense gradient, and how many have slices. They are summed like
// the rest, so that every worker learns what the others have without another message.
//
// Buckets are given to the team in their order, whatever the order in which replicas fill them, and
// taken from it once all are given. What only some workers would do is decided by sums, which are
// equal everywhere.
#include <algorithm>
#include <charconv>

#include "tutti/core/logging.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/strategy/gradient_round.h"
#include "tutti/tensor/half_conversion.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlockElements = 8 * 1024;
constexpr std::size_t kCountersPerItem = 2;

/// Counter `index` of a bucket: float32 or float64, both exact for any number of replicas.
double counter(const MutableTensor& flat, std::size_t count, std::size_t index) {
  if (flat.dtype() == DType::kFloat64) return flat.span<double>()[count + index];
  return flat.span<float>()[count + index];
}
void set_counter(MutableTensor& flat, std::size_t count, std::size_t index, std::size_t value) {
  if (flat.dtype() == DType::kFloat64) {
    flat.span<double>()[count + index] = static_cast<double>(value);
  } else {
    flat.span<float>()[count + index] = static_cast<float>(value);
  }
}

Elements elements_of(MutableTensor& flat) {
  return {flat.data(), static_cast<std::size_t>(flat.num_elements()), flat.dtype()};
}

}  // namespace

void GradientRound::make_partial_sums(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  if (!is_floating(plan.dtype)) {
    fail(ErrorCode::kUnimplemented, "gradients of ", plan.dtype,
         " with several workers; expected a floating type; try a cast");
  }
  const std::size_t count = plan.count + kCountersPerItem * plan.items.size();
  BucketState& state = buckets_[bucket];
  for (std::size_t p = 0; p < team_->partial_sums().size(); ++p) {
    state.flat.push_back(team_->make_buffer(count, WorkerTeam::sum_dtype(plan.dtype)));
  }
  const Variable& first = variables_[plan.items.front().variable];
  state.name = concat("gradients ", bucket + 1, "/", buckets_.size(), " ", first.name());
}

/// Called before kinds are made equal within the worker.
void GradientRound::count_kinds(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    std::size_t dense = 0, sparse = 0;
    for (const std::vector<Gradient>& of_replica : gradients_) {
      dense += of_replica[plan.items[i].variable].is_dense() ? 1 : 0;
      sparse += of_replica[plan.items[i].variable].is_slices() ? 1 : 0;
    }
    std::vector<MutableTensor>& flat = buckets_[bucket].flat;
    for (std::size_t p = 0; p < flat.size(); ++p) {
      set_counter(flat[p], plan.count, kCountersPerItem * i, p == 0 ? dense : 0);
      set_counter(flat[p], plan.count, kCountersPerItem * i + 1, p == 0 ? sparse : 0);
    }
  }
}

void GradientRound::add_for_workers(const Piece& piece) {
  for (std::size_t begin = piece.begin; begin < piece.end; begin += kBlockElements) {
    add_block_for_workers(
        {piece.item, piece.bucket, begin, std::min(piece.end, begin + kBlockElements)});
  }
}

void GradientRound::add_block_for_workers(const Piece& block) {
  const DType dtype = plan_->buckets[block.bucket].dtype;
  const DType wide = WorkerTeam::sum_dtype(dtype);
  std::vector<const std::byte*> inputs;
  std::vector<std::vector<std::byte>> copies;
  copies.reserve(num_replicas_);
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    const std::byte* values = gradient_at(r, block);
    if (policy_ == NonFinitePolicy::kZero && count_non_finite(dtype, values, block.count()) > 0) {
      note(block.item, block.offset() + *first_non_finite(dtype, values, block.count()),
           first_replica() + static_cast<int>(r));
      copies.emplace_back(values, values + block.count() * size_of(dtype));
      clear_non_finite(dtype, copies.back().data(), block.count());
      values = copies.back().data();
    }
    inputs.push_back(values);
  }
  std::vector<std::vector<float>> widened(wide == dtype ? 0 : num_replicas_,
                                          std::vector<float>(block.count()));
  for (std::size_t r = 0; r < widened.size(); ++r) {
    widen(dtype, inputs[r], widened[r].data(), block.count());
    inputs[r] = reinterpret_cast<const std::byte*>(widened[r].data());
  }
  const auto partials = team_->partial_sums();
  for (std::size_t p = 0; p < partials.size(); ++p) {
    reduce_along_tree(ReduceOp::kSum, wide,
                      std::span(inputs).subspan(static_cast<std::size_t>(partials[p].first),
                                                static_cast<std::size_t>(partials[p].count)),
                      element(block.bucket, p, block.begin), block.count());
  }
}

void GradientRound::give_to_workers(std::size_t bucket) {
  MutexLock lock(sums_mutex_);
  buckets_[bucket].summed = true;
  for (; next_to_give_ < buckets_.size() && buckets_[next_to_give_].summed; ++next_to_give_) {
    BucketState& state = buckets_[next_to_give_];
    std::vector<Elements> partials;
    for (MutableTensor& flat : state.flat) partials.push_back(elements_of(flat));
    const TraceSpan span("give", "communication",
                         {{"bucket", static_cast<std::int64_t>(next_to_give_)}});
    state.sum = team_->start_sum(partials, state.name);
  }
}

void GradientRound::join_workers() {
  if (!team_) return;
  const TraceSpan span("workers", "communication");
  for (std::size_t b = 0; b < buckets_.size(); ++b) take_from_workers(b);
  if (policy_ == NonFinitePolicy::kError || policy_ == NonFinitePolicy::kSkip) share_findings();
}

void GradientRound::take_from_workers(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  state.sum.wait();
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    take_item(bucket, i, counter(state.flat[0], plan.count, kCountersPerItem * i),
              counter(state.flat[0], plan.count, kCountersPerItem * i + 1));
  }
  state.flat.resize(1);
  if (plan.dtype != state.flat[0].dtype()) {
    MutableTensor rounded(state.flat[0].shape(), plan.dtype, Device{});
    narrow(state.flat[0].span<float>().data(), plan.dtype, rounded.data(), plan.count);
    state.flat[0] = std::move(rounded);
  }
  if (policy_ != NonFinitePolicy::kIgnore) search_sums(bucket);
}

void GradientRound::take_item(std::size_t bucket, std::size_t position, double num_dense,
                              double num_sparse) {
  const BucketPlan::Item& item = plan_->buckets[bucket].items[position];
  Kind& kind = buckets_[bucket].kinds[position];
  if (kind == Kind::kNone && num_dense + num_sparse > 0.0) {
    log_warning_once(concat("Variable '", variables_[item.variable].name(),
                            "' has no gradient on the replicas of worker ", team_->worker(),
                            " but has one on others; zeros are used there"));
  }
  if (num_dense > 0.0) {
    if (num_sparse > 0.0) sum_mixed(item, bucket);
    kind = Kind::kDense;
  } else if (num_sparse > 0.0) {
    sum_sparse(item);
    kind = Kind::kSparse;
  }
}

/// Slices on some replicas and dense gradients on others: workers that had slices alone have given
/// zeros. So the sum is made once more, of this variable.
void GradientRound::sum_mixed(const BucketPlan::Item& item, std::size_t bucket) {
  make_dense(item, bucket);
  add_for_workers({item, bucket, item.first, item.first + item.count});
  std::vector<Elements> partials;
  for (std::size_t p = 0; p < buckets_[bucket].flat.size(); ++p) {
    partials.push_back(
        {element(bucket, p, item.first), item.count, buckets_[bucket].flat[p].dtype()});
  }
  const std::string name = concat("mixed gradients of ", variables_[item.variable].name());
  team_->start_sum(partials, name).wait();
}

std::vector<IndexedSlices> GradientRound::slices_of_all_replicas(const BucketPlan::Item& item) {
  ReplicaValues local;
  for (IndexedSlices& slices : local_slices(item)) local.push_back({std::move(slices)});
  std::vector<IndexedSlices> all;
  const std::string name = concat("slices of ", variables_[item.variable].name());
  for (const std::vector<Gradient>& replica : team_->gather(local, name)) {
    all.push_back(replica.at(0).slices());
  }
  return all;
}

void GradientRound::search_sums(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const BucketPlan::Item& item = plan.items[i];
    if (buckets_[bucket].kinds[i] != Kind::kDense) continue;
    std::byte* const sum = element(bucket, 0, item.first);
    if (count_non_finite(plan.dtype, sum, item.count) == 0) continue;
    note_first({item, bucket, item.first, item.first + item.count});
    if (policy_ == NonFinitePolicy::kZero) clear_non_finite(plan.dtype, sum, item.count);
  }
}

/// Every worker found the same sums, but may know different replicas whose fault they are: the
/// lowest place of all is told to all.
void GradientRound::share_findings() {
  const auto& own = non_finite_.lowest();
  if (!own) return;
  // A replica's fault is lower than a sum's everywhere, also where only the sum shows it.
  const std::string text = own->replica == NonFiniteValue::kSum
                               ? std::string()
                               : concat(own->variable, " ", own->index, " ", own->replica);
  NonFiniteFindings findings;
  bool any = false;
  for (const std::string& each : team_->gather_texts(text, "gradients that are not finite")) {
    if (each.empty()) continue;
    NonFiniteValue value;
    const char* const end = each.data() + each.size();
    const char* next = std::from_chars(each.data(), end, value.variable).ptr;
    next = std::from_chars(next + 1, end, value.index).ptr;
    std::from_chars(next + 1, end, value.replica);
    findings.note(value);
    any = true;
  }
  if (any) non_finite_.replace(*findings.lowest());
}

}  // namespace tutti::internal
