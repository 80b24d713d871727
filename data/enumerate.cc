// Elements with their number in front.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti {
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

class EnumerateSource : public internal::ForwardingSource {
 public:
  EnumerateSource(std::shared_ptr<const DatasetSource> below, std::int64_t start)
      : ForwardingSource(std::move(below)), start_(start) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<EnumerateIterator>(below().iterate(epoch), start_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<EnumerateSource>(std::move(below), start_);
  }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }

 private:
  std::int64_t start_;
};

}  // namespace

Dataset Dataset::enumerate(std::int64_t start) const {
  return Dataset(std::make_shared<EnumerateSource>(source_, start));
}

}  // namespace tutti
