// The rows of batches as elements.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti {
namespace {

class UnbatchIterator : public ElementIterator {
 public:
  explicit UnbatchIterator(std::unique_ptr<ElementIterator> below) : below_(std::move(below)) {}

  std::optional<Element> next() override {
    if (!find_row()) return std::nullopt;
    std::vector<Tensor> row;
    for (const Tensor& tensor : batch_->tensors()) {
      const auto& shape = tensor.shape();
      const Shape row_shape(std::span<const std::int64_t>(
          shape.begin() + 1, static_cast<std::size_t>(shape.rank() - 1)));
      row.push_back(tensor.rows(row_, 1).reshaped(row_shape));
    }
    ++row_;
    return Element(std::move(row), batch_->names());
  }

  void skip(std::int64_t count) override {
    while (count > 0 && find_row()) {
      const std::int64_t skipped = std::min(count, batch_->rows() - row_);
      row_ += skipped;
      count -= skipped;
    }
  }

 private:
  // Whether row_ is a row of batch_, which may be a new one.
  bool find_row() {
    while (!batch_ || row_ == batch_->rows()) {
      batch_ = below_->next();
      row_ = 0;
      if (!batch_) return false;
    }
    return true;
  }

  std::unique_ptr<ElementIterator> below_;
  std::optional<Element> batch_;
  std::int64_t row_ = 0;
};

class UnbatchSource : public internal::ForwardingSource {
 public:
  using ForwardingSource::ForwardingSource;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<UnbatchIterator>(below().iterate(epoch));
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<UnbatchSource>(std::move(below));
  }
  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    return length == kInfinite || length == 0 ? length : std::nullopt;
  }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override {
    const std::optional<int> depth = below().batch_depth();
    return depth ? std::optional(std::max(*depth - 1, 0)) : depth;
  }
  bool may_end_in_partial_batch() const override { return false; }
};

}  // namespace

Dataset Dataset::unbatch() const { return Dataset(std::make_shared<UnbatchSource>(source_)); }

}  // namespace tutti
