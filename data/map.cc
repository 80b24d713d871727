// A function of every element.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"
#include "tutti/data/parallel_map.h"

namespace tutti {
namespace {

using internal::NumberedFunction;

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

class MapSource : public internal::ForwardingSource {
 public:
  MapSource(std::shared_ptr<const DatasetSource> below, NumberedFunction fn, int num_parallel_calls)
      : ForwardingSource(std::move(below)),
        fn_(std::move(fn)),
        num_parallel_calls_(num_parallel_calls) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return internal::make_map(below().iterate(epoch), fn_, num_parallel_calls_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<MapSource>(std::move(below), fn_, num_parallel_calls_);
  }

  /// The function may change the rows, or make batches.
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return std::nullopt; }

 private:
  NumberedFunction fn_;
  int num_parallel_calls_;
};

}  // namespace

namespace internal {

std::unique_ptr<ElementIterator> make_map(std::unique_ptr<ElementIterator> below,
                                          NumberedFunction fn, int num_parallel_calls) {
  if (num_parallel_calls == 1) {
    return std::make_unique<MapIterator>(std::move(below), std::move(fn));
  }
  return make_parallel_map(std::move(below), std::move(fn), num_parallel_calls);
}

}  // namespace internal

Dataset Dataset::map(std::function<Element(const Element&)> fn, MapOptions options) const {
  if (!fn) fail(ErrorCode::kInvalidArgument, "Dataset::map: expected a function, got none");
  if (options.num_parallel_calls < 1) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::map: expected num_parallel_calls of at least 1, got ",
         options.num_parallel_calls);
  }
  NumberedFunction of_element = [fn = std::move(fn)](const Element& element, std::uint64_t) {
    return fn(element);
  };
  return Dataset(
      std::make_shared<MapSource>(source_, std::move(of_element), options.num_parallel_calls));
}

}  // namespace tutti
