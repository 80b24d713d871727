// A function of every element.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"
#include "tutti/data/parallel_map.h"

namespace tutti {
namespace {

using internal::MapFunction;

class MapIterator : public internal::ForwardingIterator {
 public:
  MapIterator(std::unique_ptr<ElementIterator> below, MapFunction fn)
      : ForwardingIterator(std::move(below)), fn_(std::move(fn)) {}

  std::optional<Element> next() override {
    std::optional<Element> element = below().next();
    if (!element) return std::nullopt;
    return fn_(*element);
  }

 private:
  MapFunction fn_;
};

class MapSource : public internal::ForwardingSource {
 public:
  MapSource(std::shared_ptr<const DatasetSource> below, MapFunction fn, int num_parallel_calls)
      : ForwardingSource(std::move(below)),
        fn_(std::move(fn)),
        num_parallel_calls_(num_parallel_calls) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    auto elements = below().iterate(epoch);
    if (num_parallel_calls_ == 1) return std::make_unique<MapIterator>(std::move(elements), fn_);
    return internal::make_parallel_map(std::move(elements), fn_, num_parallel_calls_);
  }

  /// The function may change the rows.
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }

 private:
  MapFunction fn_;
  int num_parallel_calls_;
};

}  // namespace

Dataset Dataset::map(std::function<Element(const Element&)> fn, MapOptions options) const {
  if (!fn) fail(ErrorCode::kInvalidArgument, "Dataset::map: expected a function, got none");
  if (options.num_parallel_calls < 1) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::map: expected num_parallel_calls of at least 1, got ",
         options.num_parallel_calls);
  }
  return Dataset(std::make_shared<MapSource>(source_, std::move(fn), options.num_parallel_calls));
}

}  // namespace tutti
