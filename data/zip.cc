// Several datasets side by side.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "tutti/data/dataset.h"

namespace tutti {
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

}  // namespace tutti
