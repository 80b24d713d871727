// Dataset::batch, padded_batch and pack.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/names.h"
#include "data/forwarding_source.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Stacking of rows: one copy per row and component.

namespace {

void require_components_of_first(const Element& first, const Element& other, std::size_t index,
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
       what, " ", got, " in element ", index, " of the batch; call map() to make them equal");
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
  internal::require(first.rank() != Shape::kMaxRank, who, ": component '", name,
                    "': expected fewer than ", Shape::kMaxRank,
                    " dimensions, because batches have one more, got shape ", first.shape());
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

/// Returns one element whose component i stacks component i of all elements along a new first axis:
/// n elements of shape [...] give [n, ...]. Requires: at least one element. If two elements differ
/// in a shape, dtype, device or name, throws kInvalidArgument naming `who`, the component and the
/// difference.
Element stack_elements(std::span<const Element> elements, std::string_view who) {
  TUTTI_CHECK(!elements.empty(), "stack_elements: expected at least one element, got none");
  for (std::size_t i = 1; i < elements.size(); ++i) {
    require_components_of_first(elements[0], elements[i], i, who);
  }
  std::vector<Tensor> tensors;
  tensors.reserve(elements[0].size());
  for (std::size_t component = 0; component < elements[0].size(); ++component) {
    tensors.push_back(stack_component(elements, component, who));
  }
  return Element(std::move(tensors), elements[0].names());
}

// Dataset::batch() and padded_batch().

using Dims = std::vector<std::int64_t>;

Dims dims_of(const Shape& shape) { return Dims(shape.begin(), shape.end()); }

// Returns the largest size of each dimension of component `component` in the rows.
Dims largest_dims(const std::vector<Element>& rows, std::size_t component) {
  Dims dims = dims_of(rows[0][component].shape());
  for (const Element& row : rows) {
    const Shape& shape = row[component].shape();
    internal::require(shape.rank() == static_cast<int>(dims.size()),
                      "Dataset::padded_batch: component '", row.names()[component],
                      "': expected rank ", dims.size(),
                      " as in the first element of the batch, got shape ", shape);
    for (int i = 0; i < shape.rank(); ++i) {
      auto& dim = dims[static_cast<std::size_t>(i)];
      dim = std::max(dim, shape[i]);
    }
  }
  return dims;
}

Tensor padded(const Tensor& tensor, const Dims& dims, double padding) {
  const NoDeviceScope elements_are_on_the_host;
  Dims after = dims;
  for (int i = 0; i < tensor.rank(); ++i) after[static_cast<std::size_t>(i)] -= tensor.shape()[i];
  return pad(tensor, Dims(dims.size(), 0), after, padding);
}

struct Batching {
  std::int64_t size = 1;
  bool drop_remainder = false;
  std::optional<PaddedBatchOptions> padding = {};  // for padded_batch()
};

class BatchIterator : public internal::ForwardingIterator {
 public:
  BatchIterator(std::unique_ptr<ElementIterator> below, const Batching& batching)
      : ForwardingIterator(std::move(below)), batching_(batching) {}

  std::optional<Element> next() override {
    const auto size = static_cast<std::size_t>(batching_.size);
    rows_.clear();
    while (rows_.size() < size) {
      std::optional<Element> row = below().next();
      if (!row) break;
      if (batching_.padding && !rows_.empty() && row->size() != rows_[0].size()) {
        fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: expected ", rows_[0].size(),
             " components, as in the first element of the batch, got ", row->size());
      }
      rows_.push_back(std::move(*row));
    }
    const bool incomplete = rows_.size() < size;
    if (rows_.empty() || (incomplete && batching_.drop_remainder)) return std::nullopt;
    if (batching_.padding) return stack_elements(with_padding(rows_), "Dataset::padded_batch");
    return stack_elements(rows_, "Dataset::batch");
  }

  void skip(std::int64_t count) override {
    if (count > 0) below().skip(internal::saturating_product(count, batching_.size));
  }

 private:
  std::vector<Element> with_padding(const std::vector<Element>& rows) const {
    std::vector<std::vector<Tensor>> tensors(rows.size());
    for (std::size_t component = 0; component < rows[0].size(); ++component) {
      const Dims dims = wanted_dims(rows, component);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const Tensor& tensor = rows[i][component];
        tensors[i].push_back(padded(tensor, dims, padding_of(component)));
      }
    }
    std::vector<Element> padded_rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      padded_rows.push_back(rows[i].with_tensors(std::move(tensors[i])));
    }
    return padded_rows;
  }

  double padding_of(std::size_t component) const {
    return component < batching_.padding->padding_values.size()
               ? batching_.padding->padding_values[component]
               : 0.0;
  }

  Dims wanted_dims(const std::vector<Element>& rows, std::size_t component) const {
    const Dims largest = largest_dims(rows, component);
    if (component >= batching_.padding->padded_shapes.size()) return largest;
    Dims dims = batching_.padding->padded_shapes[component];
    if (dims.size() != largest.size()) {
      fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: component '",
           rows[0].names()[component], "': expected a padded shape of rank ", largest.size(),
           ", got [", join(dims), "]");
    }
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == kLargest) dims[i] = largest[i];
      if (dims[i] >= largest[i]) continue;
      fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: component '",
           rows[0].names()[component], "': expected a size of at most ", dims[i], " in dimension ",
           i, ", got ", largest[i]);
    }
    return dims;
  }

  const Batching batching_;
  std::vector<Element> rows_;
};

class BatchSource : public internal::Decorator<BatchSource, BatchIterator, Batching> {
 public:
  using Decorator::Decorator;

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> rows = below().cardinality();
    if (!rows || *rows == kInfinite) return rows;
    const bool has_tail = *rows % argument().size != 0 && !argument().drop_remainder;
    return *rows / argument().size + (has_tail ? 1 : 0);
  }

  std::optional<std::int64_t> batch_size() const override { return argument().size; }
  std::optional<int> batch_depth() const override {
    const std::optional<int> depth = below().batch_depth();
    return depth ? std::optional(*depth + 1) : depth;
  }

  bool may_end_in_partial_batch() const override {
    if (argument().drop_remainder) return false;
    const std::optional<std::int64_t> rows = below().cardinality();
    return !rows || (*rows != kInfinite && *rows % argument().size != 0);
  }
};

Dataset batched(const SourcePtr& source, Batching batching) {
  internal::require(batching.size >= 1,
                    batching.padding ? "Dataset::padded_batch" : "Dataset::batch",
                    ": expected a size >= 1, got ", batching.size);
  return Dataset(std::make_shared<BatchSource>(source, std::move(batching)));
}

}  // namespace

Dataset Dataset::batch(std::int64_t size, BatchOptions options) const {
  return batched(source_, {size, options.drop_remainder});
}

Dataset Dataset::padded_batch(std::int64_t size, PaddedBatchOptions options) const {
  const bool drop_remainder = options.drop_remainder;
  return batched(source_, {size, drop_remainder, std::move(options)});
}

// Dataset::pack().

namespace {

struct Packing {
  std::int64_t length = 1;
  std::int64_t shift = 1;
  PackOptions options;
};

/// Returns the only component of an element, which must contain token numbers.
Tensor numbers_in(const Element& element) {
  const bool is_index =
      element.size() == 1 && element[0].rank() == 1 &&
      (element[0].dtype() == DType::kInt64 || element[0].dtype() == DType::kInt32);
  if (is_index) return element[0];
  fail(ErrorCode::kInvalidArgument,
       "Dataset::pack: expected elements with one component, a vector [n] of int64 or int32, got ",
       element.size(), " component(s)",
       element.size() > 0 ? concat("; the first is ", element[0].dtype(), " ", element[0].shape())
                          : std::string());
}

class PackIterator : public ElementIterator {
 public:
  PackIterator(std::unique_ptr<ElementIterator> below, const Packing& packing)
      : below_(std::move(below)), packing_(packing) {}

  std::optional<Element> next() override {
    if (!fill()) return std::nullopt;
    const auto part = [&](std::int64_t first) {
      const std::int64_t* const from = numbers_.data() + begin_ + first;
      return Tensor::from(Shape{packing_.length},
                          std::vector<std::int64_t>(from, from + packing_.length));
    };
    std::vector<Tensor> components = {part(0)};
    if (packing_.options.next_as_labels) components.push_back(part(1));
    begin_ += packing_.shift;
    return Element(std::move(components));
  }

  void skip(std::int64_t count) override {
    for (; count > 0 && fill(); --count) begin_ += packing_.shift;
  }

 private:
  /// Reads numbers until there are enough for the next row; returns false at the end.
  bool fill() {
    const std::int64_t wanted = packing_.length + (packing_.options.next_as_labels ? 1 : 0);
    while (size() - begin_ < wanted) {
      const std::optional<Element> element = below_->next();
      if (!element) return false;
      drop_used();
      const Tensor numbers = numbers_in(*element);
      if (numbers.dtype() == DType::kInt64) {
        append(numbers.host_span<std::int64_t>());
      } else {
        append(numbers.host_span<std::int32_t>());
      }
      if (packing_.options.end) numbers_.push_back(*packing_.options.end);
    }
    return true;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }

  /// Drops the numbers that precede the next row. If shift > length, the next row may begin beyond
  /// all numbers that have been read.
  void drop_used() {
    const std::int64_t used = std::min(begin_, size());
    numbers_.erase(numbers_.begin(), numbers_.begin() + used);
    begin_ -= used;
  }

  template <class T>
  void append(std::span<const T> numbers) {
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  }

  std::unique_ptr<ElementIterator> below_;
  const Packing packing_;
  std::vector<std::int64_t> numbers_;
  std::int64_t begin_ = 0;  // index in numbers_ at which the next row begins
};

class PackSource : public internal::Decorator<PackSource, PackIterator, Packing> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> below_has = below().cardinality();
    return below_has == kInfinite ? below_has : std::nullopt;
  }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return 0; }
  bool may_end_in_partial_batch() const override { return false; }
};

}  // namespace

Dataset Dataset::pack(std::int64_t length, PackOptions options) const {
  const std::int64_t shift = options.shift.value_or(length);
  internal::require(length >= 1 && shift >= 1,
                    "Dataset::pack: expected a length and a shift >= 1, got ", length, " and ",
                    shift);
  return Dataset(std::make_shared<PackSource>(source_, Packing{length, shift, options}));
}

}  // namespace tutti
