// Dataset::zip, concatenate, interleave and flat_map.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "core/names.h"
#include "data/data_threads.h"
#include "data/forwarding_source.h"
#include "tutti/data/dataset.h"

namespace tutti {

// Dataset::zip().

namespace {

Element join_components(const std::vector<Element>& elements) {
  std::vector<Tensor> tensors;
  std::vector<std::string> names;
  for (const Element& element : elements) {
    tensors.insert(tensors.end(), element.tensors().begin(), element.tensors().end());
    names.insert(names.end(), element.names().begin(), element.names().end());
  }
  const bool all_different =
      std::set<std::string>(names.begin(), names.end()).size() == names.size();
  return all_different ? Element(std::move(tensors), std::move(names))
                       : Element(std::move(tensors));
}

class ZipIterator : public ElementIterator {
 public:
  explicit ZipIterator(std::vector<std::unique_ptr<ElementIterator>> parts)
      : parts_(std::move(parts)) {}

  std::optional<Element> next() override {
    std::vector<Element> elements;
    for (auto& part : parts_) {
      std::optional<Element> element = part->next();
      if (!element) {
        parts_.clear();
        return std::nullopt;
      }
      elements.push_back(std::move(*element));
    }
    if (elements.empty()) return std::nullopt;
    return join_components(elements);
  }

  void skip(std::int64_t count) override {
    for (auto& part : parts_) part->skip(count);
  }

 private:
  std::vector<std::unique_ptr<ElementIterator>> parts_;  // empty once any part has ended
};

/// Source that combines several sources, called its parts. It has a batch property only if all
/// parts agree on it.
class MultiInputSource : public DatasetSource {
 public:
  explicit MultiInputSource(std::vector<Dataset> parts) : parts_(std::move(parts)) {}

  std::optional<std::int64_t> batch_size() const override {
    const std::optional<std::int64_t> first = parts_.front().batch_size();
    for (const Dataset& part : parts_) {
      if (part.batch_size() != first) return std::nullopt;
    }
    return first;
  }

  std::optional<int> batch_depth() const override {
    const std::optional<int> first = parts_.front().source().batch_depth();
    for (const Dataset& part : parts_) {
      if (part.source().batch_depth() != first) return std::nullopt;
    }
    return first;
  }

  bool may_end_in_partial_batch() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const Dataset& part) {
      return part.source().may_end_in_partial_batch();
    });
  }

  /// Returns the pass shard of the first sharded dataset among the parts; the default (the full
  /// pass) if no part is sharded.
  PassShard pass_shard() const override {
    for (const Dataset& part : parts_) {
      if (const PassShard shard = part.source().pass_shard(); shard.count > 1) return shard;
    }
    return {};
  }

  std::vector<SourcePtr> inputs() const override {
    std::vector<SourcePtr> inputs;
    for (const Dataset& part : parts_) inputs.push_back(part.shared_source());
    return inputs;
  }

 protected:
  const std::vector<Dataset>& parts() const { return parts_; }

 private:
  const std::vector<Dataset> parts_;
};

class ZipSource : public MultiInputSource {
 public:
  using MultiInputSource::MultiInputSource;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    std::vector<std::unique_ptr<ElementIterator>> iterators;
    for (const Dataset& part : parts()) iterators.push_back(part.iterate(epoch));
    return std::make_unique<ZipIterator>(std::move(iterators));
  }

  std::optional<std::int64_t> cardinality() const override {
    std::int64_t shortest = kInfinite;
    for (const Dataset& part : parts()) {
      const std::optional<std::int64_t> length = part.cardinality();
      if (!length) return std::nullopt;
      if (*length == kInfinite) continue;
      shortest = shortest == kInfinite ? *length : std::min(shortest, *length);
    }
    return shortest;
  }

  SourcePtr with_inputs(std::vector<SourcePtr> inputs) const override {
    return std::make_shared<ZipSource>(std::vector<Dataset>(inputs.begin(), inputs.end()));
  }
};

}  // namespace

Dataset Dataset::zip(std::vector<Dataset> datasets) {
  internal::require(!datasets.empty(), "Dataset::zip: expected at least one dataset, got none");
  return Dataset(std::make_shared<ZipSource>(std::move(datasets)));
}

// Dataset::concatenate().

namespace {

void require_same_components(const Element& first, const Element& second) {
  bool same = first.names() == second.names();
  for (std::size_t i = 0; same && i < first.size(); ++i) {
    same = first[i].dtype() == second[i].dtype() && first[i].rank() == second[i].rank();
  }
  if (same) return;
  auto describe = [](const Element& element) {
    std::string text;
    for (std::size_t i = 0; i < element.size(); ++i) {
      if (i > 0) text += ", ";
      text += concat(element.names()[i], " ", element[i].dtype(), " of rank ", element[i].rank());
    }
    return text;
  };
  fail(ErrorCode::kInvalidArgument, "Dataset::concatenate: expected elements (", describe(first),
       ") as in the first dataset, got (", describe(second), ") from the second");
}

class ConcatenateIterator : public ElementIterator {
 public:
  ConcatenateIterator(std::unique_ptr<ElementIterator> first,
                      std::unique_ptr<ElementIterator> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  std::optional<Element> next() override {
    if (first_) {
      if (std::optional<Element> element = first_->next()) {
        if (!pattern_) pattern_ = *element;
        return element;
      }
      first_.reset();
    }
    std::optional<Element> element = second_->next();
    if (element && pattern_) {
      require_same_components(*pattern_, *element);
    }
    return element;
  }

 private:
  std::unique_ptr<ElementIterator> first_;  // null once it has ended
  std::unique_ptr<ElementIterator> second_;
  std::optional<Element> pattern_;  // first element of first_, compared with second_'s
};

class ConcatenateSource : public MultiInputSource {
 public:
  ConcatenateSource(Dataset first, Dataset second)
      : MultiInputSource({std::move(first), std::move(second)}) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<ConcatenateIterator>(parts()[0].iterate(epoch),
                                                 parts()[1].iterate(epoch));
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> a = parts()[0].cardinality();
    const std::optional<std::int64_t> b = parts()[1].cardinality();
    if (a == kInfinite || b == kInfinite) return kInfinite;
    if (!a || !b) return std::nullopt;
    return internal::saturating_sum(*a, *b);
  }

  SourcePtr with_inputs(std::vector<SourcePtr> inputs) const override {
    return std::make_shared<ConcatenateSource>(Dataset(std::move(inputs.at(0))),
                                               Dataset(std::move(inputs.at(1))));
  }
};

}  // namespace

Dataset Dataset::concatenate(const Dataset& next) const {
  return Dataset(std::make_shared<ConcatenateSource>(*this, next));
}

// Dataset::interleave(), in tf's order. It cycles through slots and takes up to block_length
// elements from each slot. When a slot's dataset ends, iteration moves on to the next slot; the
// empty slot is refilled in the next cycle.

namespace {

using MakeDataset = std::function<Dataset(const Element&)>;

struct Interleaving {
  MakeDataset make;
  InterleaveOptions options;
  internal::FunctionRandom random = {};
};

class InterleaveIterator : public ElementIterator {
 public:
  InterleaveIterator(std::unique_ptr<ElementIterator> below, const Interleaving& interleaving,
                     std::uint64_t epoch, const PassShard& shard)
      : below_(std::move(below)),
        make_(interleaving.make),
        random_(interleaving.random.of_pass(epoch, shard)),
        block_length_(interleaving.options.block_length),
        epoch_(epoch),
        slots_(static_cast<std::size_t>(interleaving.options.cycle_length)) {}

  std::optional<Element> next() override {
    while (below_ || num_open_ > 0) {
      std::optional<Slot>& slot = slots_[slot_];
      if (slot) {
        if (auto element = slot->elements->next()) {
          if (++taken_ == block_length_) advance_slot();
          return element;
        }
        slot.reset();
        --num_open_;
        advance_slot();
      } else if (below_) {
        fill(slot);
      } else {
        advance_slot();
      }
    }
    return std::nullopt;
  }

 private:
  struct Slot {
    Dataset dataset;  // must outlive `elements`
    std::unique_ptr<ElementIterator> elements;
  };

  void fill(std::optional<Slot>& slot) {
    const std::optional<Element> element = below_->next();
    if (!element) {
      below_.reset();
      return;
    }
    const RandomContextScope scope(random_.at(next_number_++));
    Dataset dataset = make_(*element);
    auto elements = dataset.iterate(epoch_);
    slot.emplace(Slot{std::move(dataset), std::move(elements)});
    ++num_open_;
  }

  void advance_slot() {
    taken_ = 0;
    slot_ = (slot_ + 1) % slots_.size();
  }

  std::unique_ptr<ElementIterator> below_;  // null once it is exhausted
  MakeDataset make_;
  internal::PassRandom random_;
  std::uint64_t next_number_ = 0;  // number of the next element of the input source
  std::int64_t block_length_;
  std::uint64_t epoch_;
  std::vector<std::optional<Slot>> slots_;
  std::size_t slot_ = 0;
  std::int64_t taken_ = 0;  // number of elements taken since slot_ last changed
  std::size_t num_open_ = 0;
};

class InterleaveSource
    : public internal::Decorator<InterleaveSource, InterleaveIterator, Interleaving> {
 public:
  using Decorator::Decorator;

  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return std::nullopt; }

  /// Returns the elements of the input dataset as if they were files, if the datasets created from
  /// them read files; otherwise nullopt.
  std::optional<SourceFiles> files() const override {
    const std::optional<Element> first = below().iterate(0)->next();
    if (!first) return std::nullopt;
    const RandomContextScope scope(argument().random.of_pass(0, below().pass_shard()).at(0));
    if (!internal::begins_at_files(argument().make(*first).source())) return std::nullopt;
    return SourceFiles{below().cardinality(), [self = *this](auto count, auto index) {
                         const Dataset names(self.inputs().at(0));
                         return self.over(names.shard(count, index).shared_source());
                       }};
  }
};

}  // namespace

Dataset Dataset::interleave(std::function<Dataset(const Element&)> make,
                            InterleaveOptions options) const {
  internal::require_function(make, "Dataset::interleave");
  internal::require(options.cycle_length >= 1 && options.block_length >= 1,
                    "Dataset::interleave: expected cycle_length and block_length >= 1, got ",
                    options.cycle_length, " and ", options.block_length);
  return Dataset(
      std::make_shared<InterleaveSource>(source_, Interleaving{std::move(make), options}));
}

// An interleave() with one slot reads every dataset to its end before the next one begins.
Dataset Dataset::flat_map(std::function<Dataset(const Element&)> make) const {
  internal::require_function(make, "Dataset::flat_map");
  return interleave(std::move(make), InterleaveOptions{.cycle_length = 1});
}

}  // namespace tutti
