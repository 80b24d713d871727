// One dataset after the other.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti {
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
  std::optional<Element> pattern_;  // the first element of first_
};

class ConcatenateSource : public DatasetSource {
 public:
  ConcatenateSource(Dataset first, Dataset second)
      : first_(std::move(first)), second_(std::move(second)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<ConcatenateIterator>(first_.iterate(epoch), second_.iterate(epoch));
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> a = first_.cardinality();
    const std::optional<std::int64_t> b = second_.cardinality();
    if (a == kInfinite || b == kInfinite) return kInfinite;
    if (!a || !b) return std::nullopt;
    return internal::saturating_sum(*a, *b);
  }

  std::optional<std::int64_t> batch_size() const override {
    const std::optional<std::int64_t> size = first_.batch_size();
    return size == second_.batch_size() ? size : std::nullopt;
  }

  std::optional<int> batch_depth() const override {
    const std::optional<int> depth = first_.source().batch_depth();
    return depth == second_.source().batch_depth() ? depth : std::nullopt;
  }

  bool may_end_in_partial_batch() const override {
    return first_.source().may_end_in_partial_batch() ||
           second_.source().may_end_in_partial_batch();
  }

  std::vector<SourcePtr> inputs() const override {
    return {first_.shared_source(), second_.shared_source()};
  }
  SourcePtr with_inputs(std::vector<SourcePtr> inputs) const override {
    return std::make_shared<ConcatenateSource>(Dataset(std::move(inputs.at(0))),
                                               Dataset(std::move(inputs.at(1))));
  }

 private:
  Dataset first_;
  Dataset second_;
};

}  // namespace

Dataset Dataset::concatenate(const Dataset& next) const {
  return Dataset(std::make_shared<ConcatenateSource>(*this, next));
}

}  // namespace tutti
