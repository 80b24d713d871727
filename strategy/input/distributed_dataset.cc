// A dataset whose elements are one batch per replica.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/input/distributed_dataset.h"

#include <utility>

#include "strategy/input/input_parts.h"
#include "tutti/core/clock.h"

namespace tutti {

struct DistributedDataset::Impl {
  InputPlan plan;
  internal::InputPart part;
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
  internal::StepCutter cutter;
  std::uint64_t generation = 0;

  std::optional<PerReplica<Batch>> next();
};

std::optional<PerReplica<Batch>> DistributedDataset::Iterator::State::next() {
  if (generation != impl->generation) {
    fail(ErrorCode::kFailedPrecondition,
         "DistributedDataset: this iterator has ended since begin() or restore() was called "
         "again; use the newest iterator");
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
       "DistributedDataset: expected an iterator at a batch, got one at the end of its epoch; try "
       "a loop until end(), or begin() for the next epoch");
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
    fail(
        ErrorCode::kInvalidArgument,
        "DistributedDataset::restore: expected an epoch and a number of batches of 0 or more, got ",
        epoch, " and ", batches);
  }
  const Json* const global_batch = position.find("global_batch");
  const std::optional<std::int64_t> own_batch = impl_->part.global_batch_size;
  if (batches > 0 && global_batch && own_batch && global_batch->as_int() != *own_batch) {
    fail(ErrorCode::kFailedPrecondition, "DistributedDataset::restore: the saved position follows ",
         batches, " global batches of ", global_batch->as_int(), " rows in epoch ", epoch,
         "; expected the same global batch, got ", *own_batch,
         ", with which rows would be missed or repeated; try the batch size of before until that "
         "epoch has ended, or a checkpoint of the end of an epoch");
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
