// Elements of several datasets in turn, each dataset made from an element.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/auto_shard.h"
#include "tutti/data/forwarding_source.h"

// tf's order: a cycle of slots is walked round, up to block_length elements from each. A slot whose
// dataset has ended is left at once and filled from below when the walk comes to it again.

namespace tutti {
namespace {

using MakeDataset = std::function<Dataset(const Element&)>;

class InterleaveIterator : public ElementIterator {
 public:
  InterleaveIterator(std::unique_ptr<ElementIterator> below, MakeDataset make,
                     const InterleaveOptions& options, std::uint64_t epoch)
      : below_(std::move(below)),
        make_(std::move(make)),
        block_length_(options.block_length),
        epoch_(epoch),
        slots_(static_cast<std::size_t>(options.cycle_length)) {}

  std::optional<Element> next() override {
    while (below_ || num_open_ > 0) {
      std::optional<Slot>& slot = slots_[slot_];
      if (slot) {
        if (auto element = slot->elements->next()) {
          if (++taken_ == block_length_) go_to_next_slot();
          return element;
        }
        slot.reset();
        --num_open_;
        go_to_next_slot();
      } else if (below_) {
        fill(slot);
      } else {
        go_to_next_slot();
      }
    }
    return std::nullopt;
  }

 private:
  struct Slot {
    Dataset dataset;  // lives as long as its iterator
    std::unique_ptr<ElementIterator> elements;
  };

  void fill(std::optional<Slot>& slot) {
    const std::optional<Element> element = below_->next();
    if (!element) {
      below_.reset();
      return;
    }
    Dataset dataset = make_(*element);
    auto elements = dataset.iterate(epoch_);
    slot.emplace(Slot{std::move(dataset), std::move(elements)});
    ++num_open_;
  }

  void go_to_next_slot() {
    taken_ = 0;
    slot_ = (slot_ + 1) % slots_.size();
  }

  std::unique_ptr<ElementIterator> below_;  // null once it has ended
  MakeDataset make_;
  std::int64_t block_length_;
  std::uint64_t epoch_;
  std::vector<std::optional<Slot>> slots_;
  std::size_t slot_ = 0;
  std::int64_t taken_ = 0;  // elements of this visit to the slot
  std::size_t num_open_ = 0;
};

class InterleaveSource : public internal::ForwardingSource {
 public:
  InterleaveSource(std::shared_ptr<const DatasetSource> below, MakeDataset make,
                   const InterleaveOptions& options)
      : ForwardingSource(std::move(below)), make_(std::move(make)), options_(options) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<InterleaveIterator>(below().iterate(epoch), make_, options_, epoch);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<InterleaveSource>(std::move(below), make_, options_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return std::nullopt; }

  /// Where the datasets read files, each element below stands for its files.
  std::optional<SourceFiles> files() const override {
    const std::optional<Element> first = below().iterate(0)->next();
    if (!first || !internal::begins_at_files(make_(*first).source())) return std::nullopt;
    return SourceFiles{below().cardinality(), [self = *this](auto count, auto index) {
                         const Dataset names(self.inputs().at(0));
                         return self.over(names.shard(count, index).shared_source());
                       }};
  }

 private:
  MakeDataset make_;
  InterleaveOptions options_;
};

}  // namespace

Dataset Dataset::interleave(std::function<Dataset(const Element&)> make,
                            InterleaveOptions options) const {
  if (!make) {
    fail(ErrorCode::kInvalidArgument, "Dataset::interleave: expected a function, got none");
  }
  if (options.cycle_length < 1 || options.block_length < 1) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::interleave: expected cycle_length and block_length of at least 1, got ",
         options.cycle_length, " and ", options.block_length);
  }
  return Dataset(std::make_shared<InterleaveSource>(source_, std::move(make), options));
}

// With one slot every dataset is read to its end before the next one begins.
Dataset Dataset::flat_map(std::function<Dataset(const Element&)> make) const {
  if (!make) {
    fail(ErrorCode::kInvalidArgument, "Dataset::flat_map: expected a function, got none");
  }
  return interleave(std::move(make), InterleaveOptions{.cycle_length = 1});
}

}  // namespace tutti
