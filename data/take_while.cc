// Elements up to the first that a predicate refuses.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti {
namespace {

using Predicate = std::function<bool(const Element&)>;

class TakeWhileIterator : public ElementIterator {
 public:
  TakeWhileIterator(std::unique_ptr<ElementIterator> below, Predicate accepts)
      : below_(std::move(below)), accepts_(std::move(accepts)) {}

  std::optional<Element> next() override {
    if (!below_) return std::nullopt;
    std::optional<Element> element = below_->next();
    if (element && accepts_(*element)) return element;
    below_.reset();
    return std::nullopt;
  }

 private:
  std::unique_ptr<ElementIterator> below_;  // null once it has ended
  Predicate accepts_;
};

class TakeWhileSource : public internal::ForwardingSource {
 public:
  TakeWhileSource(std::shared_ptr<const DatasetSource> below, Predicate accepts)
      : ForwardingSource(std::move(below)), accepts_(std::move(accepts)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<TakeWhileIterator>(below().iterate(epoch), accepts_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<TakeWhileSource>(std::move(below), accepts_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }

 private:
  Predicate accepts_;
};

}  // namespace

Dataset Dataset::take_while(std::function<bool(const Element&)> predicate) const {
  if (!predicate) {
    fail(ErrorCode::kInvalidArgument, "Dataset::take_while: expected a function, got none");
  }
  return Dataset(std::make_shared<TakeWhileSource>(source_, std::move(predicate)));
}

}  // namespace tutti
