// One element at a time: a function of it, a predicate, its number.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/names.h"
#include "data/data_threads.h"
#include "data/forwarding_source.h"
#include "data/function_random.h"

namespace tutti {

// A function of every element.

namespace {

using internal::FunctionRandom;
using internal::MakeFunction;
using internal::NumberedFunction;
using internal::PassRandom;
using internal::Rows;

class MapIterator : public internal::ForwardingIterator {
 public:
  MapIterator(std::unique_ptr<ElementIterator> below, NumberedFunction fn)
      : ForwardingIterator(std::move(below)), fn_(std::move(fn)) {}

  std::optional<Element> next() override {
    // An element that cannot be read has a number, too, as with several calls at once.
    const std::uint64_t number = next_number_++;
    std::optional<Element> element = below().next();
    if (!element) return std::nullopt;
    return fn_(*element, number);
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    below().skip(count);
    next_number_ += static_cast<std::uint64_t>(count);
  }

 private:
  NumberedFunction fn_;
  std::uint64_t next_number_ = 0;
};

struct Mapping {
  MakeFunction make;
  int num_parallel_calls = 1;
  Rows rows = Rows::kUnknown;
  FunctionRandom random = {};
};

class MapSource : public internal::SourceWith<MapSource, Mapping> {
 public:
  using SourceWith::SourceWith;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    const int calls = argument().num_parallel_calls;
    if (calls == 1)
      return std::make_unique<MapIterator>(below().iterate(epoch), function_of(epoch));
    return internal::make_parallel_map(below().iterate(epoch), function_of(epoch), calls);
  }
  std::optional<std::int64_t> batch_size() const override {
    return argument().rows == Rows::kKept ? below().batch_size() : std::nullopt;
  }
  std::optional<int> batch_depth() const override {
    return argument().rows == Rows::kKept ? below().batch_depth() : std::nullopt;
  }

 private:
  /// Key of an element, from its number in this iterator.
  NumberedFunction function_of(std::uint64_t epoch) const {
    return [fn = argument().make(epoch),
            random = argument().random.of_pass(epoch, below().pass_shard())](const Element& element,
                                                                             std::uint64_t n) {
      const RandomContext context = random.at(n);
      const RandomContextScope scope(context);
      return fn(element, context.step);
    };
  }
};

}  // namespace

Dataset internal::map_numbered(const Dataset& dataset, MakeFunction make, int num_parallel_calls,
                               const char* who, Rows rows) {
  internal::require(num_parallel_calls >= 1, who,
                    ": expected num_parallel_calls of at least 1, got ", num_parallel_calls);
  return Dataset(std::make_shared<MapSource>(dataset.shared_source(),
                                             Mapping{std::move(make), num_parallel_calls, rows}));
}

Dataset Dataset::map(std::function<Element(const Element&)> fn, MapOptions options) const {
  internal::require_function(fn, "Dataset::map");
  NumberedFunction of_element = [fn = std::move(fn)](const Element& element, std::uint64_t) {
    return fn(element);
  };
  return internal::map_numbered(
      *this, [of_element](std::uint64_t) { return of_element; }, options.num_parallel_calls,
      "Dataset::map");
}

// Elements that a predicate accepts, or those up to the first that it refuses.

namespace {

using Predicate = std::function<bool(const Element&)>;

struct Choosing {
  Predicate accepts;
  FunctionRandom random = {};
};

/// The predicate of one pass, asked for one element after the other.
class Chooser {
 public:
  Chooser(const Choosing& choosing, std::uint64_t epoch, const PassShard& shard)
      : accepts_(choosing.accepts), random_(choosing.random.of_pass(epoch, shard)) {}

  bool accepts(const Element& element) {
    const RandomContextScope scope(random_.at(next_number_++));
    return accepts_(element);
  }

 private:
  Predicate accepts_;
  PassRandom random_;
  std::uint64_t next_number_ = 0;
};

class FilterIterator : public ElementIterator {
 public:
  FilterIterator(std::unique_ptr<ElementIterator> below, const Choosing& choosing,
                 std::uint64_t epoch, const PassShard& shard)
      : below_(std::move(below)), chooser_(choosing, epoch, shard) {}

  std::optional<Element> next() override {
    for (;;) {
      std::optional<Element> element = below_->next();
      if (!element || chooser_.accepts(*element)) return element;
    }
  }

 private:
  std::unique_ptr<ElementIterator> below_;
  Chooser chooser_;
};

class TakeWhileIterator : public ElementIterator {
 public:
  TakeWhileIterator(std::unique_ptr<ElementIterator> below, const Choosing& choosing,
                    std::uint64_t epoch, const PassShard& shard)
      : below_(std::move(below)), chooser_(choosing, epoch, shard) {}

  std::optional<Element> next() override {
    if (!below_) return std::nullopt;
    std::optional<Element> element = below_->next();
    if (element && chooser_.accepts(*element)) return element;
    below_.reset();
    return std::nullopt;
  }

 private:
  std::unique_ptr<ElementIterator> below_;  // null once it has ended
  Chooser chooser_;
};

/// Elements that an Iterator chooses; how many is not known before.
template <class Iterator>
class ChosenSource : public internal::Decorator<ChosenSource<Iterator>, Iterator, Choosing> {
 public:
  using internal::Decorator<ChosenSource<Iterator>, Iterator, Choosing>::Decorator;
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
};

}  // namespace

Dataset Dataset::filter(std::function<bool(const Element&)> predicate) const {
  internal::require_function(predicate, "Dataset::filter");
  return Dataset(
      std::make_shared<ChosenSource<FilterIterator>>(source_, Choosing{std::move(predicate)}));
}

Dataset Dataset::take_while(std::function<bool(const Element&)> predicate) const {
  internal::require_function(predicate, "Dataset::take_while");
  return Dataset(
      std::make_shared<ChosenSource<TakeWhileIterator>>(source_, Choosing{std::move(predicate)}));
}

// Elements with their number in front.

namespace {

class EnumerateIterator : public internal::ForwardingIterator {
 public:
  EnumerateIterator(std::unique_ptr<ElementIterator> below, std::int64_t start)
      : ForwardingIterator(std::move(below)), index_(start) {}

  std::optional<Element> next() override {
    std::optional<Element> element = below().next();
    if (!element) return std::nullopt;
    std::vector<Tensor> tensors = {Tensor::from<std::int64_t>({}, {index_++})};
    tensors.insert(tensors.end(), element->tensors().begin(), element->tensors().end());
    std::vector<std::string> names = {"index"};
    names.insert(names.end(), element->names().begin(), element->names().end());
    return Element(std::move(tensors), std::move(names));
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    below().skip(count);
    __builtin_add_overflow(index_, count, &index_);
  }

 private:
  std::int64_t index_;
};

class EnumerateSource
    : public internal::Decorator<EnumerateSource, EnumerateIterator, std::int64_t> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
};

}  // namespace

Dataset Dataset::enumerate(std::int64_t start) const {
  return Dataset(std::make_shared<EnumerateSource>(source_, start));
}

}  // namespace tutti
