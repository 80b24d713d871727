// A dataset whose elements are one batch per replica.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/distributed_dataset.h"

#include <utility>

#include "tutti/core/clock.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/rebatch.h"

namespace tutti {

struct DistributedDataset::Impl {
  Dataset dataset;
  InputPlan plan = {};
  std::optional<std::int64_t> batch_size = std::nullopt;
  std::uint64_t epoch = 0;       // of the pass under way, or of the next one
  std::int64_t batches = 0;      // handed out in it
  bool resume = false;           // restore() was called: begin() goes on there
  std::uint64_t generation = 0;  // which Iterator may go on
  double wait_seconds = 0.0;

  int num_replicas() const { return static_cast<int>(plan.replica_devices.size()); }
};

struct DistributedDataset::Iterator::State {
  std::shared_ptr<Impl> impl;
  std::unique_ptr<ElementIterator> elements;
  std::uint64_t generation = 0;

  std::optional<PerReplica<Batch>> next();

 private:
  std::optional<std::vector<Element>> split_next();
  std::optional<std::vector<Element>> whole_next();
  std::vector<std::int64_t> sizes_of(const Element& batch) const;
};

std::vector<std::int64_t> DistributedDataset::Iterator::State::sizes_of(
    const Element& batch) const {
  const std::int64_t rows = batch.rows();
  if (!impl->plan.weights.empty()) return weighted_replica_rows(rows, impl->plan.weights);
  return replica_rows(rows, impl->num_replicas());
}

std::optional<std::vector<Element>> DistributedDataset::Iterator::State::split_next() {
  std::optional<Element> batch = elements->next();
  if (!batch) return std::nullopt;
  for (const Tensor& tensor : batch->tensors()) {
    if (tensor.rank() == 0) {
      fail(ErrorCode::kInvalidArgument,
           "distribute_dataset: the dataset is not batched; expected elements whose first "
           "dimension is the global batch, got a scalar; try dataset.batch(global_batch_size)");
    }
  }
  std::vector<Element> pieces;
  std::int64_t first = 0;
  for (std::int64_t count : sizes_of(*batch)) {
    pieces.push_back(batch->slice_rows(first, count));
    first += count;
  }
  return pieces;
}

std::optional<std::vector<Element>> DistributedDataset::Iterator::State::whole_next() {
  std::vector<Element> pieces;
  for (int r = 0; r < impl->num_replicas(); ++r) {
    std::optional<Element> element = elements->next();
    if (!element) break;
    pieces.push_back(std::move(*element));
  }
  if (pieces.empty()) return std::nullopt;
  const Element& first = pieces.front();
  const bool batched = first.size() > 0 && first[0].rank() > 0;
  if (pieces.size() < impl->plan.replica_devices.size()) {
    if (!batched) {
      // A scalar has no empty form: as in tf the pass ends when a replica lacks an element.
      log_warning_once(concat("distribute_datasets_from_function: the last ", pieces.size(),
                              " elements do not reach all ", impl->num_replicas(),
                              " replicas and are left out; batch() the dataset to use them"));
      return std::nullopt;
    }
    while (pieces.size() < impl->plan.replica_devices.size()) {
      pieces.push_back(pieces.front().slice_rows(0, 0));
    }
  }
  if (!batched) return pieces;
  std::int64_t total = 0;
  for (const Element& piece : pieces) total += piece.rows();
  std::int64_t row = 0;
  for (Element& piece : pieces) {
    const std::int64_t rows = piece.rows();
    piece = piece.placed_in(row, total);
    row += rows;
  }
  return pieces;
}

std::optional<PerReplica<Batch>> DistributedDataset::Iterator::State::next() {
  if (generation != impl->generation) {
    fail(ErrorCode::kFailedPrecondition,
         "DistributedDataset: this iterator has ended since begin() or restore() was called "
         "again; use the newest iterator");
  }
  const TimePoint begin = Clock::system().now();
  auto pieces = impl->plan.cut == InputCut::kSplit ? split_next() : whole_next();
  impl->wait_seconds += seconds_between(begin, Clock::system().now());
  if (!pieces) {
    ++impl->epoch;
    impl->batches = 0;
    ++impl->generation;
    return std::nullopt;
  }
  ++impl->batches;
  std::vector<Batch> batches;
  for (std::size_t r = 0; r < pieces->size(); ++r) {
    batches.emplace_back((*pieces)[r].to(impl->plan.replica_devices[r]));
  }
  return PerReplica<Batch>(std::move(batches));
}

DistributedDataset::Iterator& DistributedDataset::Iterator::operator++() {
  if (current_) current_ = state_->next();
  return *this;
}

DistributedDataset::Iterator DistributedDataset::begin() {
  // A pass that was left in the middle counts as begun: the next begin() starts the next epoch,
  // except after restore().
  Impl& impl = *impl_;
  if (impl.batches > 0 && !impl.resume) {
    ++impl.epoch;
    impl.batches = 0;
  }
  impl.resume = false;
  ++impl.generation;
  Iterator iterator;
  iterator.state_ = std::make_shared<Iterator::State>();
  iterator.state_->impl = impl_;
  iterator.state_->generation = impl.generation;
  const int depth = impl.plan.options.prefetch;
  const std::int64_t elements_per_step =
      impl.plan.cut == InputCut::kSplit ? 1 : impl.num_replicas();
  const Dataset rest =
      impl.batches > 0 ? impl.dataset.skip(impl.batches * elements_per_step) : impl.dataset;
  iterator.state_->elements =
      (depth > 0 ? rest.prefetch(depth * static_cast<int>(elements_per_step)) : rest)
          .iterate(impl.epoch);
  iterator.current_ = iterator.state_->next();
  return iterator;
}

std::optional<std::int64_t> DistributedDataset::cardinality() const {
  const auto count = impl_->dataset.cardinality();
  if (!count || *count == kInfinite || impl_->plan.cut == InputCut::kSplit) return count;
  return (*count + impl_->num_replicas() - 1) / impl_->num_replicas();
}

std::optional<std::int64_t> DistributedDataset::global_batch_size() const {
  if (!impl_->batch_size || impl_->plan.cut == InputCut::kSplit) return impl_->batch_size;
  return *impl_->batch_size * impl_->num_replicas();
}

double DistributedDataset::take_wait_seconds() { return std::exchange(impl_->wait_seconds, 0.0); }

Json DistributedDataset::position() const {
  Json position = Json::object();
  position.set("epoch", impl_->epoch);
  position.set("batches", impl_->batches);
  return position;
}

void DistributedDataset::restore(const Json& position) {
  const std::int64_t epoch = position.at("epoch").as_int();
  const std::int64_t batches = position.at("batches").as_int();
  if (epoch < 0 || batches < 0) {
    fail(
        ErrorCode::kInvalidArgument,
        "DistributedDataset::restore: expected an epoch and a number of batches of 0 or more, got ",
        epoch, " and ", batches);
  }
  impl_->epoch = static_cast<std::uint64_t>(epoch);
  impl_->batches = batches;
  impl_->resume = true;
  ++impl_->generation;
}

DistributedDataset make_distributed_dataset(const Dataset& dataset, InputPlan plan) {
  auto impl = std::make_shared<DistributedDataset::Impl>(DistributedDataset::Impl{dataset});
  impl->plan = std::move(plan);
  impl->batch_size = dataset.batch_size();
  return DistributedDataset(std::move(impl));
}

}  // namespace tutti
