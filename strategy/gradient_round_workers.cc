// Buckets that are summed over workers, too.
// SPDX-License-Identifier: Apache-2.0
//
// A bucket's *partial sums* are what the team wants of this worker (WorkerTeam::partial_sums), in
// buffers of WorkerTeam::sum_dtype(). Behind the bucket's elements stand two *counters* per
// variable: how many replicas have a dense gradient, and how many have slices. They are summed like
// the rest, so that every worker learns what the others have without another message. So is, behind
// the counters of one bucket, what each worker has waited (straggler_watch.h); the others leave 0.
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
constexpr std::size_t kCountersPerItem = BucketPlan::kCountersPerItem;
constexpr std::size_t kBucketWithWaits = BucketPlan::kBucketWithWaits;

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
  BucketState& state = buckets_[bucket];
  const Variable& first = variables_[plan.items.front().variable];
  state.name = concat("gradients ", bucket + 1, "/", buckets_.size(), " ", first.name());
  if (on_gpus_) return make_gpu_buffers(bucket);
  const std::size_t count = plan.count + plan_->num_counters(bucket, team_->num_workers());
  for (std::size_t p = 0; p < team_->partial_sums().size(); ++p) {
    state.flat.push_back(team_->make_buffer(count, WorkerTeam::sum_dtype(plan.dtype)));
    state.partials.push_back(elements_of(state.flat.back()));
  }
}

std::size_t GradientRound::first_counter(std::size_t bucket) const {
  return by_nccl_ ? 0 : plan_->buckets[bucket].count;
}

/// Called before kinds are made equal within the worker.
void GradientRound::count_kinds(std::size_t bucket) {
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const std::vector<Elements>& partials = buckets_[bucket].partials;
  for (std::size_t p = 0; p < partials.size(); ++p) {
    const CanonicalNode node = team_->partial_sums()[p];
    const auto replicas =
        std::span(gradients_)
            .subspan(static_cast<std::size_t>(node.first), static_cast<std::size_t>(node.count));
    for (std::size_t i = 0; i < plan.items.size(); ++i) {
      double dense = 0.0, sparse = 0.0;
      for (const std::vector<Gradient>& of_replica : replicas) {
        dense += of_replica[plan.items[i].variable].is_dense() ? 1.0 : 0.0;
        sparse += of_replica[plan.items[i].variable].is_slices() ? 1.0 : 0.0;
      }
      const std::size_t first = first_counter(bucket) + kCountersPerItem * i;
      set_counter(partials[p], first, dense);
      set_counter(partials[p], first + 1, sparse);
    }
  }
  if (bucket == kBucketWithWaits) tell_wait();
}

std::size_t GradientRound::first_wait() const {
  return first_counter(kBucketWithWaits) +
         kCountersPerItem * plan_->buckets[kBucketWithWaits].items.size();
}

void GradientRound::tell_wait() {
  const double own_wait = team_->stragglers().take_wait();
  const std::vector<Elements>& partials = buckets_[kBucketWithWaits].partials;
  for (std::size_t p = 0; p < partials.size(); ++p) {
    for (int w = 0; w < team_->num_workers(); ++w) {
      set_counter(partials[p], first_wait() + static_cast<std::size_t>(w),
                  p == 0 && w == team_->worker() ? own_wait : 0.0);
    }
  }
}

void GradientRound::note_waits() {
  std::vector<double> waits;
  for (std::size_t w = 0; w < static_cast<std::size_t>(team_->num_workers()); ++w) {
    waits.push_back(counter(buckets_[kBucketWithWaits].partials[0], first_wait() + w));
  }
  team_->note_waits(waits);
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
  std::vector<std::vector<float>> sent(compresses(block.bucket) ? num_replicas_ : 0,
                                       std::vector<float>(block.count()));
  for (std::size_t r = 0; r < sent.size(); ++r) {
    compress_with_feedback(compression_, reinterpret_cast<const float*>(inputs[r]),
                           residuals_->at(r, block.bucket, block.begin), sent[r].data(),
                           block.count());
    inputs[r] = reinterpret_cast<const std::byte*>(sent[r].data());
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
  give_summed();
}

void GradientRound::give_summed() {
  for (; next_to_give_ < buckets_.size() && buckets_[next_to_give_].summed; ++next_to_give_) {
    // What is still to be looked at, or is not on the host yet, is given by give_all().
    if (by_hosts_ && (policy_ == NonFinitePolicy::kZero || !is_copied(next_to_give_))) return;
    give(next_to_give_);
  }
}

/// Waits for GPUs.
void GradientRound::give_all() {
  MutexLock lock(sums_mutex_);
  for (; next_to_give_ < buckets_.size(); ++next_to_give_) {
    if (by_hosts_) wait_for(buckets_[next_to_give_].copied);
    if (by_hosts_ && policy_ == NonFinitePolicy::kZero) clear_partial_sums(next_to_give_);
    give(next_to_give_);
  }
}

void GradientRound::give(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  const TraceSpan span("give", "communication", {{"bucket", static_cast<std::int64_t>(bucket)}});
  std::optional<DType> wire;
  if (compresses(bucket)) wire = wire_type(compression_);
  state.sum = team_->start_sum(state.partials, state.name, wire);
}

void GradientRound::join_workers() {
  const TraceSpan span("workers", "communication");
  give_all();
  for (std::size_t b = 0; b < buckets_.size(); ++b) take_from_workers(b);
  for (std::size_t b = 0; by_nccl_ && b < buckets_.size(); ++b) sum_by_nccl(b);
}

void GradientRound::take_from_workers(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  {
    const StragglerWatch::Waiting waiting(team_->stragglers());
    state.sum.wait();
  }
  if (bucket == kBucketWithWaits) note_waits();
  for (std::size_t i = 0; i < plan_->buckets[bucket].items.size(); ++i) {
    const std::size_t first = first_counter(bucket) + kCountersPerItem * i;
    take_item(bucket, i, counter(state.partials[0], first), counter(state.partials[0], first + 1));
  }
  if (by_nccl_) return;
  round_sum(bucket);
  if (policy_ != NonFinitePolicy::kIgnore) search_sums(bucket);
  if (by_hosts_ && has_dense(bucket)) spread_sum(bucket);
}

/// The result alone, in the type of the gradients.
void GradientRound::round_sum(std::size_t bucket) {
  BucketState& state = buckets_[bucket];
  const BucketPlan::Bucket& plan = plan_->buckets[bucket];
  const Elements sum = state.partials[0];
  state.partials.resize(1);
  if (!on_gpus_) state.flat.resize(1);
  if (plan.dtype == sum.dtype) return;
  MutableTensor rounded;
  if (by_hosts_) {
    state.partials[0] = host_sums_->bucket(bucket).rounded;
  } else {
    rounded = MutableTensor({static_cast<std::int64_t>(plan.count)}, plan.dtype, Device{});
    state.partials[0] = elements_of(rounded);
  }
  narrow(reinterpret_cast<const float*>(sum.data), plan.dtype, state.partials[0].data, plan.count);
  if (!on_gpus_) state.flat[0] = std::move(rounded);
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
/// zeros. So the sum is made once more, of this variable (of the bucket, where GPUs make it).
void GradientRound::sum_mixed(const BucketPlan::Item& item, std::size_t bucket) {
  if (compresses(bucket)) {
    fail(ErrorCode::kUnimplemented, "compression ", to_string(compression_), ": Variable '",
         variables_[item.variable].name(), "' has slices on some replicas and dense gradients on ",
         "others; expected one kind; try WireCompression::kNone");
  }
  make_dense(item, bucket);
  BucketState& state = buckets_[bucket];
  if (by_nccl_) {  // which comes later
    state.copied = mark_on_gpus(StreamId::kCompute);
    return;
  }
  const bool whole = by_hosts_;
  if (whole) {
    repeat_partial_sums(bucket);
    if (policy_ == NonFinitePolicy::kZero) clear_partial_sums(bucket);
  } else {
    add_for_workers({item, bucket, item.first, item.first + item.count});
  }
  std::vector<Elements> partials;
  for (std::size_t p = 0; p < state.partials.size(); ++p) {
    partials.push_back({element(bucket, p, whole ? 0 : item.first),
                        whole ? plan_->buckets[bucket].count : item.count,
                        state.partials[p].dtype});
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
