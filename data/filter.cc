// Elements that a predicate accepts.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti {
namespace {

using Predicate = std::function<bool(const Element&)>;

class FilterIterator : public ElementIterator {
 public:
  FilterIterator(std::unique_ptr<ElementIterator> below, Predicate accepts)
      : below_(std::move(below)), accepts_(std::move(accepts)) {}

  std::optional<Element> next() override {
    for (;;) {
      std::optional<Element> element = below_->next();
      if (!element || accepts_(*element)) return element;
    }
  }

 private:
  std::unique_ptr<ElementIterator> below_;
  Predicate accepts_;
};

class FilterSource : public internal::ForwardingSource {
 public:
  FilterSource(std::shared_ptr<const DatasetSource> below, Predicate accepts)
      : ForwardingSource(std::move(below)), accepts_(std::move(accepts)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<FilterIterator>(below().iterate(epoch), accepts_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<FilterSource>(std::move(below), accepts_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }

 private:
  Predicate accepts_;
};

}  // namespace

Dataset Dataset::filter(std::function<bool(const Element&)> predicate) const {
  if (!predicate) {
    fail(ErrorCode::kInvalidArgument, "Dataset::filter: expected a function, got none");
  }
  return Dataset(std::make_shared<FilterSource>(source_, std::move(predicate)));
}

}  // namespace tutti
