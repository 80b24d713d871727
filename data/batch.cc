// Stacking consecutive elements.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"
#include "tutti/data/stack.h"

namespace tutti {
namespace {

class BatchIterator : public internal::ForwardingIterator {
 public:
  BatchIterator(std::unique_ptr<ElementIterator> below, std::int64_t size, bool drop_remainder)
      : ForwardingIterator(std::move(below)), size_(size), drop_remainder_(drop_remainder) {}

  std::optional<Element> next() override {
    const auto size = static_cast<std::size_t>(size_);
    rows_.clear();
    while (rows_.size() < size) {
      std::optional<Element> row = below().next();
      if (!row) break;
      rows_.push_back(std::move(*row));
    }
    const bool incomplete = rows_.size() < size;
    if (rows_.empty() || (incomplete && drop_remainder_)) return std::nullopt;
    return internal::stack_elements(rows_, "Dataset::batch");
  }

  void skip(std::int64_t count) override {
    if (count > 0) below().skip(internal::saturating_product(count, size_));
  }

 private:
  std::int64_t size_;
  bool drop_remainder_;
  std::vector<Element> rows_;
};

class BatchSource : public internal::ForwardingSource {
 public:
  BatchSource(std::shared_ptr<const DatasetSource> below, std::int64_t size,
              const BatchOptions& options)
      : ForwardingSource(std::move(below)), size_(size), options_(options) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<BatchIterator>(below().iterate(epoch), size_, options_.drop_remainder);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<BatchSource>(std::move(below), size_, options_);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> rows = below().cardinality();
    if (!rows || *rows == kInfinite) return rows;
    const bool has_tail = *rows % size_ != 0 && !options_.drop_remainder;
    return *rows / size_ + (has_tail ? 1 : 0);
  }

  std::optional<std::int64_t> batch_size() const override { return size_; }
  std::optional<int> batch_depth() const override {
    return internal::one_deeper(below().batch_depth());
  }

  bool may_end_in_partial_batch() const override {
    if (options_.drop_remainder) return false;
    const std::optional<std::int64_t> rows = below().cardinality();
    return !rows || (*rows != kInfinite && *rows % size_ != 0);
  }

 private:
  std::int64_t size_;
  BatchOptions options_;
};

}  // namespace

Dataset Dataset::batch(std::int64_t size, BatchOptions options) const {
  if (size < 1) {
    fail(ErrorCode::kInvalidArgument, "Dataset::batch: expected a size of at least 1, got ", size);
  }
  return Dataset(std::make_shared<BatchSource>(source_, size, options));
}

}  // namespace tutti
