// Rows into batches, and batches into rows.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/stack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti::internal {

// Rows into a batch: one copy per row and component.

namespace {

void require_same_components(const Element& first, const Element& other, std::size_t index,
                             std::string_view who) {
  if (&other.names() == &first.names() || other.names() == first.names()) return;
  fail(ErrorCode::kInvalidArgument, who, ": elements have different components; expected [",
       join(first.names()), "] as in the first element of the batch, got [", join(other.names()),
       "] in element ", index, " of the batch");
}

template <class Value>
[[noreturn]] void fail_different(std::string_view who, const char* what, const std::string& name,
                                 const Value& expected, const Value& got, std::size_t index) {
  fail(ErrorCode::kInvalidArgument, who, ": elements have different ", what, "s in component '",
       name, "'; expected ", what, " ", expected, " as in the first element of the batch, got ",
       what, " ", got, " in element ", index, " of the batch; try map() to make them equal");
}

void require_same_kind(const Tensor& first, const Tensor& other, const std::string& name,
                       std::size_t index, std::string_view who) {
  if (!(other.shape() == first.shape())) {
    fail_different(who, "shape", name, first.shape(), other.shape(), index);
  }
  if (other.dtype() != first.dtype()) {
    fail_different(who, "dtype", name, first.dtype(), other.dtype(), index);
  }
  if (other.device() != first.device()) {
    fail_different(who, "device", name, first.device(), other.device(), index);
  }
}

Tensor stack_component(std::span<const Element> elements, std::size_t component,
                       std::string_view who) {
  const Tensor& first = elements[0][component];
  const std::string& name = elements[0].names()[component];
  if (first.rank() == Shape::kMaxRank) {
    fail(ErrorCode::kInvalidArgument, who, ": component '", name, "' of shape ", first.shape(),
         " cannot get one more dimension; expected fewer than ", Shape::kMaxRank);
  }
  MutableTensor batch(first.shape().with_front(static_cast<std::int64_t>(elements.size())),
                      first.dtype(), first.device());
  const std::size_t row_bytes = first.num_bytes();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Tensor& row = elements[i][component];
    require_same_kind(first, row, name, i, who);
    if (row_bytes > 0) std::memcpy(batch.data() + i * row_bytes, row.bytes().data(), row_bytes);
  }
  return batch.freeze();
}

}  // namespace

Element stack_elements(std::span<const Element> elements, std::string_view who) {
  TUTTI_CHECK(!elements.empty(), "stack_elements: no elements");
  for (std::size_t i = 1; i < elements.size(); ++i) {
    require_same_components(elements[0], elements[i], i, who);
  }
  std::vector<Tensor> tensors;
  tensors.reserve(elements[0].size());
  for (std::size_t component = 0; component < elements[0].size(); ++component) {
    tensors.push_back(stack_component(elements, component, who));
  }
  return Element(std::move(tensors), elements[0].names());
}

}  // namespace tutti::internal

namespace tutti {

// Stacking consecutive elements.

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

// The rows of batches as elements.

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
