// Several datasets: side by side, or one after the other.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "tutti/data/dataset.h"
#include "tutti/data/forwarding_source.h"

namespace tutti {

// Several datasets side by side.

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
  std::vector<std::unique_ptr<ElementIterator>> parts_;  // empty once one has ended
};

class ZipSource : public DatasetSource {
 public:
  explicit ZipSource(std::vector<Dataset> parts) : parts_(std::move(parts)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    std::vector<std::unique_ptr<ElementIterator>> iterators;
    for (const Dataset& part : parts_) iterators.push_back(part.iterate(epoch));
    return std::make_unique<ZipIterator>(std::move(iterators));
  }

  std::optional<std::int64_t> cardinality() const override {
    std::int64_t shortest = kInfinite;
    for (const Dataset& part : parts_) {
      const std::optional<std::int64_t> length = part.cardinality();
      if (!length) return std::nullopt;
      if (*length == kInfinite) continue;
      shortest = shortest == kInfinite ? *length : std::min(shortest, *length);
    }
    return shortest;
  }

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

  std::vector<SourcePtr> inputs() const override {
    std::vector<SourcePtr> inputs;
    for (const Dataset& part : parts_) inputs.push_back(part.shared_source());
    return inputs;
  }
  SourcePtr with_inputs(std::vector<SourcePtr> inputs) const override {
    return std::make_shared<ZipSource>(std::vector<Dataset>(inputs.begin(), inputs.end()));
  }

 private:
  std::vector<Dataset> parts_;
};

}  // namespace

Dataset Dataset::zip(std::vector<Dataset> datasets) {
  if (datasets.empty()) {
    fail(ErrorCode::kInvalidArgument, "Dataset::zip: expected at least one dataset, got none");
  }
  return Dataset(std::make_shared<ZipSource>(std::move(datasets)));
}

// One dataset after the other.

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
