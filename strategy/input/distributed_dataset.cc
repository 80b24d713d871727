// Implements DistributedDataset and the rules by which workers and replicas share batches.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input/distributed_dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/names.h"
#include "data/forwarding_source.h"
#include "strategy/input/input_parts.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/input/input_plan.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

struct DistributedDataset::Impl {
  InputPlan plan;
  internal::InputPart part;
  std::uint64_t epoch = 0;       // number of the current pass; between passes, of the next one
  std::int64_t batches = 0;      // number of batches yielded in this epoch
  bool resume = false;           // true after restore(): begin() continues from the members above
  std::uint64_t generation = 0;  // generation number of the valid iterator
  double wait_seconds = 0.0;

  int num_replicas() const { return static_cast<int>(plan.replica_devices.size()); }
};

struct DistributedDataset::Iterator::State {
  std::shared_ptr<Impl> impl;
  std::unique_ptr<ElementIterator> elements;
  internal::StepCutter cutter;
  std::uint64_t generation = 0;

  std::optional<PerReplica<Batch>> next();
};

std::optional<PerReplica<Batch>> DistributedDataset::Iterator::State::next() {
  if (generation != impl->generation) {
    fail(ErrorCode::kFailedPrecondition,
         "DistributedDataset: this iterator is invalid, because begin() or restore() was called "
         "after it was created; use the newest iterator");
  }
  const TimePoint begin = Clock::system().now();
  auto pieces = cutter.next(*elements);
  impl->wait_seconds += seconds_between(begin, Clock::system().now());
  if (!pieces) {
    ++impl->epoch;
    impl->batches = 0;
    ++impl->generation;
    return std::nullopt;
  }
  impl->batches += cutter.take_steps();
  const InputPlan& plan = impl->plan;
  std::vector<Batch> batches;
  for (std::size_t r = 0; r < pieces->size(); ++r) {
    Element& piece = (*pieces)[r];
    if (plan.options.fetch_to_device) piece = piece.to(plan.replica_devices[r]);
    batches.emplace_back(std::move(piece));
  }
  return PerReplica<Batch>(std::move(batches));
}

const PerReplica<Batch>& DistributedDataset::Iterator::operator*() const {
  if (current_) return *current_;
  fail(ErrorCode::kOutOfRange,
       "DistributedDataset: expected an iterator that points to a batch, got one at the end of "
       "its epoch; loop until end(), or call begin() for the next epoch");
}

DistributedDataset::Iterator& DistributedDataset::Iterator::operator++() {
  if (current_) current_ = state_->next();
  return *this;
}

DistributedDataset::Iterator DistributedDataset::begin() {
  // A pass that the caller abandoned counts as started, so begin() starts the epoch after it,
  // except after restore().
  Impl& impl = *impl_;
  if (impl.batches > 0 && !impl.resume) {
    ++impl.epoch;
    impl.batches = 0;
  }
  impl.resume = false;
  ++impl.generation;
  const int depth = impl.plan.options.prefetch;
  const int elements_per_step = impl.part.cut == InputCut::kSplit ? 1 : impl.num_replicas();
  const Dataset& all = impl.part.dataset;
  const Dataset rest = impl.batches > 0 ? all.skip(impl.batches * elements_per_step) : all;
  const Dataset ahead = depth > 0 ? rest.prefetch(depth * elements_per_step) : rest;
  Iterator iterator;
  iterator.state_ = std::make_shared<Iterator::State>(
      Iterator::State{impl_, ahead.iterate(impl.epoch), {impl.plan, impl.part}, impl.generation});
  iterator.current_ = iterator.state_->next();
  return iterator;
}

std::optional<std::int64_t> DistributedDataset::cardinality() const { return impl_->part.steps; }

std::optional<std::int64_t> DistributedDataset::global_batch_size() const {
  return impl_->part.global_batch_size;
}

double DistributedDataset::take_wait_seconds() { return std::exchange(impl_->wait_seconds, 0.0); }

Json DistributedDataset::position() const {
  Json position = Json::object();
  position.set("epoch", impl_->epoch);
  position.set("batches", impl_->batches);
  if (impl_->part.global_batch_size) position.set("global_batch", *impl_->part.global_batch_size);
  return position;
}

void DistributedDataset::restore(const Json& position) {
  const std::int64_t epoch = position.at("epoch").as_int();
  const std::int64_t batches = position.at("batches").as_int();
  if (epoch < 0 || batches < 0) {
    fail(ErrorCode::kInvalidArgument,
         "DistributedDataset::restore: expected an epoch and a number of batches >= 0, got ", epoch,
         " and ", batches);
  }
  const Json* const global_batch = position.find("global_batch");
  const std::optional<std::int64_t> own_batch = impl_->part.global_batch_size;
  if (batches > 0 && global_batch && own_batch && global_batch->as_int() != *own_batch) {
    fail(ErrorCode::kFailedPrecondition, "DistributedDataset::restore: the saved position is ",
         "after ", batches, " global batches of ", global_batch->as_int(), " rows in epoch ", epoch,
         "; expected the same batch size, got ", *own_batch,
         ", which would skip or repeat rows; use the previous batch size until that epoch has "
         "ended, or a checkpoint from the end of an epoch");
  }
  impl_->epoch = static_cast<std::uint64_t>(epoch);
  impl_->batches = batches;
  impl_->resume = true;
  ++impl_->generation;
}

DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan) {
  internal::InputPart part = internal::part_of_worker(dataset, plan);
  return DistributedDataset(std::make_shared<DistributedDataset::Impl>(
      DistributedDataset::Impl{std::move(plan), std::move(part)}));
}

}  // namespace tutti

// Part of a global dataset that one worker reads, and how its batches are split.

namespace tutti::internal {
namespace {

int num_local(const InputPlan& plan) { return static_cast<int>(plan.replica_devices.size()); }

bool shards(const InputPlan& plan) {
  return plan.cut == InputCut::kSplit && (plan.options.sharding_rule == ShardingRule::kTensorFlow ||
                                          plan.options.auto_shard_policy.has_value());
}

void require_numbers(const InputPlan& plan) {
  const int replicas = plan.num_replicas_in_sync;
  if (num_local(plan) < 1 || plan.num_workers < 1 || plan.worker < 0 ||
      plan.worker >= plan.num_workers || plan.first_replica < 0 ||
      plan.first_replica + num_local(plan) > replicas) {
    fail(ErrorCode::kInvalidArgument,
         "distribute_dataset: expected 0 <= worker < workers and local replicas within 0 .. "
         "replicas - 1, got worker ",
         plan.worker, " of ", plan.num_workers, ", replicas ", plan.first_replica, " .. ",
         plan.first_replica + num_local(plan) - 1, " of ", replicas);
  }
  if (!plan.weights.empty() && std::ssize(plan.weights) != replicas) {
    fail(ErrorCode::kInvalidArgument, "distribute_dataset: expected ", replicas,
         " weights, one per replica across all workers, or none, got ", plan.weights.size());
  }
}

// tf's batch sizes assume that all workers have the same number of replicas, with equal weights.
void require_equal_workers(const InputPlan& plan) {
  const int local = num_local(plan);
  if (plan.num_replicas_in_sync != local * plan.num_workers ||
      plan.first_replica != local * plan.worker || !plan.weights.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "distribute_dataset: ShardingRule::kTensorFlow: expected the same number of replicas on "
         "every worker and no weights, got ",
         local, " of ", plan.num_replicas_in_sync, " replicas on worker ", plan.worker, " of ",
         plan.num_workers, ", and ", plan.weights.size(), " weights; use ShardingRule::kCanonical");
  }
}

InputPart sharded_part(const Dataset& dataset, const InputPlan& plan) {
  require_equal_workers(plan);
  AutoShardPolicy policy = plan.options.auto_shard_policy.value_or(AutoShardPolicy::kAuto);
  // A single worker reads the whole dataset. Policy FILE therefore accepts datasets without files,
  // and only selects how batches are split.
  if (plan.num_workers > 1 || policy == AutoShardPolicy::kAuto) {
    policy = choose_auto_shard(dataset, plan.num_workers, policy).policy;
  }
  const std::optional<std::int64_t> batch = dataset.batch_size();
  InputPart part{
      .dataset = dataset, .cut = InputCut::kWhole, .whole = dataset, .global_batch_size = batch};
  if (policy == AutoShardPolicy::kData) {
    // All workers must split the rows into the same batches here: with a different order of batch
    // sizes on each worker, some rows would be lost and others repeated.
    part.dataset = auto_shard(rebatch_evenly(dataset, plan.num_replicas_in_sync), plan.num_workers,
                              plan.worker, policy);
    part.steps = dataset.cardinality();
    return part;
  }
  // Workers read different numbers of files, so only an infinite cardinality is the same on all of
  // them.
  if (dataset.cardinality() == kInfinite) part.steps = kInfinite;
  const Dataset own = auto_shard(dataset, plan.num_workers, plan.worker, policy);
  part.dataset = batch ? rebatch(own, batch_sizes_for_worker(*batch, plan.num_workers,
                                                             num_local(plan), plan.worker))
                       : rebatch_evenly(own, plan.num_replicas_in_sync);
  return part;
}

InputPart unsharded_part(const Dataset& dataset, const InputPlan& plan) {
  InputPart part{.dataset = dataset, .cut = plan.cut, .whole = dataset};
  part.steps = dataset.cardinality();
  part.global_batch_size = dataset.batch_size();
  if (plan.cut == InputCut::kSplit) return part;
  if (part.steps && *part.steps != kInfinite) {
    part.steps = (*part.steps + num_local(plan) - 1) / num_local(plan);
    // The number of steps is unknown, because other workers may have more elements.
    if (plan.num_workers > 1) part.steps = std::nullopt;
  }
  if (part.global_batch_size) *part.global_batch_size *= plan.num_replicas_in_sync;
  return part;
}

void require_host(const InputOptions& options) {
  if (!options.place_dataset_on_device) return;
  fail(ErrorCode::kUnimplemented,
       "distribute_dataset: InputOptions::place_dataset_on_device: datasets are read and "
       "transformed on the host; expected false; use fetch_to_device, which puts each replica's "
       "slice on its device");
}

// Elements that are not known to be single examples are assumed to be batches.
void require_batches(const Dataset& dataset) {
  if (dataset.source().batch_depth() != 0) return;
  fail(
      ErrorCode::kInvalidArgument,
      "distribute_dataset: the dataset is not batched; expected elements that are global batches, "
      "got single examples; call dataset.batch(global_batch_size), after unbatch() if each element "
      "already holds many rows");
}

}  // namespace

InputPart part_of_worker(const Dataset& dataset, InputPlan& plan) {
  if (plan.num_replicas_in_sync == 0) plan.num_replicas_in_sync = num_local(plan);
  require_numbers(plan);
  require_host(plan.options);
  if (plan.cut == InputCut::kSplit) require_batches(dataset);
  const bool own_parts = shards(plan) || plan.cut == InputCut::kWhole;
  if (plan.num_workers > 1 && own_parts && !plan.rows_of_workers) {
    fail(ErrorCode::kFailedPrecondition,
         "distribute_dataset: workers that read different parts must agree on where the data ends; "
         "expected InputPlan::rows_of_workers, got none");
  }
  return shards(plan) ? sharded_part(dataset, plan) : unsharded_part(dataset, plan);
}

void require_end(std::string_view who, std::optional<std::int64_t> cardinality,
                 std::string_view remedy) {
  if (cardinality != kInfinite) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected a dataset that ends, got one that never does",
       " (is there a repeat() without a count?); use ", remedy);
}

}  // namespace tutti::internal

namespace tutti {

std::int64_t InputContext::get_per_replica_batch_size(std::int64_t global_batch_size) const {
  internal::require(
      num_replicas_in_sync >= 1 && global_batch_size % num_replicas_in_sync == 0,
      "InputContext::get_per_replica_batch_size: the global batch does not divide evenly; "
      "expected a multiple of num_replicas_in_sync = ",
      num_replicas_in_sync, ", got ", global_batch_size);
  return global_batch_size / num_replicas_in_sync;
}

std::string InputContext::to_string() const {
  return concat("input pipeline id ", input_pipeline_id, ", total: ", num_input_pipelines);
}

std::vector<std::int64_t> replica_rows(std::int64_t rows, int num_replicas) {
  const std::int64_t full = (rows + num_replicas - 1) / num_replicas;
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = rows; std::ssize(sizes) < num_replicas; left -= sizes.back()) {
    sizes.push_back(std::min(left, full));
  }
  return sizes;
}

std::vector<std::int64_t> weighted_replica_rows(std::int64_t rows,
                                                std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> sizes;
  std::vector<double> remainders;
  for (double weight : weights) {
    const double share = static_cast<double>(rows) * weight / total;
    sizes.push_back(static_cast<std::int64_t>(std::floor(share)));
    remainders.push_back(share - std::floor(share));
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return remainders[a] > remainders[b]; });
  std::int64_t left = rows - std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++sizes[order[i]];
  return sizes;
}

std::vector<std::int64_t> batch_sizes_for_worker(std::int64_t global_batch_size, int num_workers,
                                                 int replicas_per_worker, int worker) {
  if (global_batch_size < 0 || num_workers < 1 || replicas_per_worker < 1 || worker < 0 ||
      worker >= num_workers) {
    fail(ErrorCode::kInvalidArgument,
         "batch_sizes_for_worker: expected a global batch >= 0 and 0 <= worker < workers, "
         "got batch ",
         global_batch_size, ", workers ", num_workers, ", replicas per worker ",
         replicas_per_worker, ", worker ", worker);
  }
  const std::int64_t n = std::int64_t{num_workers} * replicas_per_worker;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(n), global_batch_size / n);
  for (std::int64_t i = 0; i < global_batch_size % n; ++i) ++sizes[static_cast<std::size_t>(i)];
  // std::ranges::rotate would be shorter, but clang++ 14 cannot compile it.
  std::rotate(sizes.begin(), sizes.begin() + std::ptrdiff_t{worker} * replicas_per_worker,
              sizes.end());
  return sizes;
}

namespace {

Element joined(const std::vector<Element>& parts) {
  if (parts.size() == 1) return parts.front();
  std::vector<Tensor> tensors;
  for (std::size_t c = 0; c < parts.front().size(); ++c) {
    std::vector<Tensor> column;
    for (const Element& part : parts) column.push_back(part[c]);
    tensors.push_back(concat(column, 0));
  }
  return Element(std::move(tensors), parts.front().names());
}

void require_rows(const Element& element) {
  for (const Tensor& tensor : element.tensors()) {
    internal::require(tensor.rank() != 0,
                      "rebatch: the dataset yields scalars; expected batches, got shape ",
                      tensor.shape(), "; call dataset.batch(global_batch_size) first");
  }
}

struct Rebatching {
  std::vector<std::int64_t> sizes;
  BatchOptions options;
};

// Iterator that joins the rows of all batches into one stream and splits it into batches of the
// given sizes.
class RebatchIterator final : public ElementIterator {
 public:
  RebatchIterator(std::unique_ptr<ElementIterator> input, const Rebatching& rebatching)
      : input_(std::move(input)), sizes_(rebatching.sizes), options_(rebatching.options) {}

  std::optional<Element> next() override {
    const std::int64_t size = sizes_[turn_ % sizes_.size()];
    if (size == 0) return empty_piece();
    std::vector<Element> parts;
    std::int64_t taken = 0;
    while (taken < size && fill()) {
      const std::int64_t count = std::min(size - taken, batch_->rows() - first_);
      parts.push_back(batch_->slice_rows(first_, count));
      first_ += count;
      taken += count;
    }
    if (parts.empty() || (taken < size && options_.drop_remainder)) return std::nullopt;
    ++turn_;
    return joined(parts);
  }

 private:
  // Makes the next row available in batch_. At the end of the data, returns false and keeps the
  // last batch.
  bool fill() {
    while (!batch_ || first_ >= batch_->rows()) {
      std::optional<Element> next = ended_ ? std::nullopt : input_->next();
      if (!next) {
        ended_ = true;
        return false;
      }
      require_rows(*next);
      batch_ = std::move(next);
      first_ = 0;
      trailing_empties_ = 0;
    }
    return true;
  }

  // Returns a piece without rows, for a size of 0. After the last row of the data, returns only one
  // such piece, and then nullopt.
  std::optional<Element> empty_piece() {
    if (!fill()) {
      if (!batch_ || trailing_empties_ > 0 || options_.drop_remainder) return std::nullopt;
      ++trailing_empties_;
    }
    ++turn_;
    return batch_->slice_rows(0, 0);
  }

  std::unique_ptr<ElementIterator> input_;
  std::vector<std::int64_t> sizes_;
  BatchOptions options_;
  std::optional<Element> batch_;
  std::int64_t first_ = 0;
  std::size_t turn_ = 0;
  int trailing_empties_ = 0;
  bool ended_ = false;
};

class RebatchSource : public internal::Decorator<RebatchSource, RebatchIterator, Rebatching> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return std::nullopt; }
  bool may_end_in_partial_batch() const override { return !argument().options.drop_remainder; }
};

}  // namespace

Dataset rebatch(const Dataset& dataset, std::vector<std::int64_t> sizes, BatchOptions options) {
  if (sizes.empty() || std::ranges::any_of(sizes, [](auto size) { return size < 0; }) ||
      std::ranges::all_of(sizes, [](auto size) { return size == 0; })) {
    fail(ErrorCode::kInvalidArgument,
         "rebatch: expected sizes >= 0, at least one of them positive, got [", join(sizes), "]");
  }
  return Dataset(std::make_shared<RebatchSource>(dataset.shared_source(),
                                                 Rebatching{std::move(sizes), options}));
}

Dataset rebatch_evenly(const Dataset& dataset, int num_pieces) {
  internal::require(num_pieces >= 1, "rebatch_evenly: expected at least 1 piece, got ", num_pieces);
  return dataset.flat_map([num_pieces](const Element& batch) {
    require_rows(batch);
    const std::vector<std::int64_t> sizes = replica_rows(batch.rows(), num_pieces);
    return Dataset::from_generator([batch, sizes](std::uint64_t) -> Dataset::Generator {
      return [batch, sizes, turn = std::size_t{0}, first = std::int64_t{0}]() mutable {
        std::optional<Element> piece;
        if (turn == sizes.size()) return piece;
        piece = batch.slice_rows(first, sizes[turn]);
        first += sizes[turn++];
        return piece;
      };
    });
  });
}

}  // namespace tutti

namespace tutti::internal {
namespace {

std::vector<std::int64_t> sizes_of(const Element& batch, const InputPlan& plan) {
  return plan.weights.empty() ? replica_rows(batch.rows(), plan.num_replicas_in_sync)
                              : weighted_replica_rows(batch.rows(), plan.weights);
}

bool is_batched(const Element& element) { return element.size() > 0 && element[0].rank() > 0; }

std::int64_t rows_in(const std::vector<Element>& pieces) {
  std::int64_t rows = 0;
  for (const Element& piece : pieces) rows += piece.rows();
  return rows;
}

// Records the pieces' positions in the step's global batch.
void place(std::vector<Element>& pieces, std::int64_t first_row, std::int64_t global_rows) {
  for (Element& piece : pieces) {
    const std::int64_t rows = piece.rows();
    piece = piece.placed_in(first_row, global_rows);
    first_row += rows;
  }
}

// Warns about dropped scalars. A scalar cannot be an empty batch; as in tf, the pass therefore ends
// when a replica has no element.
void warn_of_left_out_scalars(std::size_t count) {
  if (count == 0) return;
  log_warning_once(
      concat("distribute_datasets_from_function: the last ", count,
             " elements are too few for all replicas and are dropped; call batch() on the "
             "dataset to use them"));
}

}  // namespace

std::optional<std::vector<Element>> StepCutter::next(ElementIterator& elements) {
  for (;;) {
    auto pieces = part_.cut == InputCut::kSplit ? cut_next(elements) : whole_next(elements);
    if (!pieces) return std::nullopt;
    ++steps_;
    // A step has no rows if every worker with rows left has a batch size of 0 in this step
    // (batch_sizes_for_worker()). Training on an empty step would still change momenta.
    const bool is_empty = is_batched(pieces->front()) && pieces->front().global_rows() == 0;
    if (plan_.num_workers == 1 || !is_empty) return pieces;
  }
}

std::optional<std::vector<Element>> StepCutter::cut_next(ElementIterator& elements) {
  std::optional<Element> batch = elements.next();
  if (!batch) return std::nullopt;
  for (const Tensor& tensor : batch->tensors()) {
    internal::require(
        tensor.rank() != 0,
        "distribute_dataset: the dataset is not batched; expected elements whose first "
        "dimension is the global batch, got a scalar; call dataset.batch(global_batch_size)");
  }
  if (plan_.note_global_batch) {
    plan_.note_global_batch(*batch, std::exchange(is_first_batch_, false));
  }
  const std::vector<std::int64_t> sizes = sizes_of(*batch, plan_);
  const auto own = sizes.begin() + plan_.first_replica;
  std::int64_t first = 0;
  for (auto size = sizes.begin(); size != own; ++size) first += *size;
  std::vector<Element> pieces;
  for (auto size = own; size != own + std::ssize(plan_.replica_devices); ++size) {
    pieces.push_back(batch->slice_rows(first, *size));
    first += *size;
  }
  return pieces;
}

std::optional<std::vector<Element>> StepCutter::whole_next(ElementIterator& elements) {
  const std::size_t replicas = plan_.replica_devices.size();
  std::vector<Element> pieces;
  while (pieces.size() < replicas) {
    std::optional<Element> element = elements.next();
    if (!element) break;
    pieces.push_back(std::move(*element));
  }
  if (!pieces.empty()) pattern_ = pieces.front();
  const bool scalars = !pieces.empty() && !is_batched(pieces.front());
  const bool no_more = pieces.empty() || (scalars && pieces.size() < replicas);
  const std::int64_t own = no_more ? kNoMoreRows : (scalars ? std::ssize(pieces) : rows_in(pieces));
  const std::vector<std::int64_t> all = ask_workers(own);
  const auto ended = std::count(all.begin(), all.end(), kNoMoreRows);
  if (ended == std::ssize(all) || (ended > 0 && !is_batched(pattern()))) {
    if (scalars) warn_of_left_out_scalars(pieces.size());
    return std::nullopt;
  }
  if (scalars) return pieces;
  while (pieces.size() < replicas) pieces.push_back(pattern().slice_rows(0, 0));
  std::int64_t first = 0, total = 0;
  for (std::size_t w = 0; w < all.size(); ++w) {
    if (static_cast<int>(w) == plan_.worker) first = total;
    total += std::max<std::int64_t>(all[w], 0);
  }
  place(pieces, first, total);
  return pieces;
}

std::vector<std::int64_t> StepCutter::ask_workers(std::int64_t rows) const {
  if (plan_.num_workers == 1) return {rows};
  std::vector<std::int64_t> all = plan_.rows_of_workers(rows);
  TUTTI_CHECK(std::ssize(all) == plan_.num_workers);
  return all;
}

const Element& StepCutter::pattern() {
  if (!pattern_) pattern_ = part_.whole.iterate(0)->next();
  if (!pattern_) {
    fail(ErrorCode::kFailedPrecondition, "distribute_dataset: worker ", plan_.worker,
         " has no element, but other workers have some, so the structure of an empty batch is "
         "unknown; expected at least one element on every worker");
  }
  return *pattern_;
}

}  // namespace tutti::internal
