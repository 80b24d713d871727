// Stacking consecutive elements of different sizes, padded to the largest.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/data/forwarding_source.h"
#include "tutti/data/stack.h"

namespace tutti {
namespace {

using Dims = std::vector<std::int64_t>;

Dims dims_of(const Shape& shape) { return Dims(shape.begin(), shape.end()); }

// The largest size of component `component` in every dimension.
Dims largest_dims(const std::vector<Element>& rows, std::size_t component) {
  Dims dims = dims_of(rows[0][component].shape());
  for (const Element& row : rows) {
    const Shape& shape = row[component].shape();
    if (shape.rank() != static_cast<int>(dims.size())) {
      fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: component '",
           row.names()[component], "': expected rank ", dims.size(),
           " as in the first element of the batch, got shape ", shape);
    }
    for (int i = 0; i < shape.rank(); ++i) {
      auto& dim = dims[static_cast<std::size_t>(i)];
      dim = std::max(dim, shape[i]);
    }
  }
  return dims;
}

void copy_block(const std::byte* from, const Dims& from_dims, std::byte* to, const Dims& to_dims,
                std::size_t axis, std::size_t element_bytes) {
  if (axis == from_dims.size()) {
    std::memcpy(to, from, element_bytes);
    return;
  }
  std::size_t from_step = element_bytes;
  std::size_t to_step = element_bytes;
  for (std::size_t i = axis + 1; i < from_dims.size(); ++i) {
    from_step *= static_cast<std::size_t>(from_dims[i]);
    to_step *= static_cast<std::size_t>(to_dims[i]);
  }
  if (axis + 1 == from_dims.size()) {
    const std::size_t bytes = static_cast<std::size_t>(from_dims[axis]) * element_bytes;
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  for (std::int64_t i = 0; i < from_dims[axis]; ++i) {
    copy_block(from + static_cast<std::size_t>(i) * from_step, from_dims,
               to + static_cast<std::size_t>(i) * to_step, to_dims, axis + 1, element_bytes);
  }
}

Tensor padded(const Tensor& tensor, const Dims& dims, const Tensor& padding) {
  const Shape shape{std::span<const std::int64_t>(dims)};
  if (shape == tensor.shape()) return tensor;
  MutableTensor larger(shape, tensor.dtype(), tensor.device());
  const std::size_t size = size_of(tensor.dtype());
  for (std::size_t at = 0; at < larger.num_bytes(); at += size) {
    std::memcpy(larger.data() + at, padding.bytes().data(), size);
  }
  if (tensor.num_elements() > 0) {
    copy_block(tensor.bytes().data(), dims_of(tensor.shape()), larger.data(), dims, 0, size);
  }
  return larger.freeze();
}

class PaddedBatchIterator : public internal::ForwardingIterator {
 public:
  PaddedBatchIterator(std::unique_ptr<ElementIterator> below, std::int64_t size,
                      const PaddedBatchOptions& options)
      : ForwardingIterator(std::move(below)), size_(size), options_(options) {}

  std::optional<Element> next() override {
    const auto size = static_cast<std::size_t>(size_);
    std::vector<Element> rows;
    while (rows.size() < size) {
      std::optional<Element> row = below().next();
      if (!row) break;
      if (!rows.empty() && row->size() != rows[0].size()) {
        fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: expected ", rows[0].size(),
             " components as in the first element of the batch, got ", row->size());
      }
      rows.push_back(std::move(*row));
    }
    if (rows.empty() || (rows.size() < size && options_.drop_remainder)) return std::nullopt;
    return internal::stack_elements(pad(rows), "Dataset::padded_batch");
  }

  void skip(std::int64_t count) override {
    if (count > 0) below().skip(internal::saturating_product(count, size_));
  }

 private:
  std::vector<Element> pad(const std::vector<Element>& rows) const {
    std::vector<std::vector<Tensor>> tensors(rows.size());
    for (std::size_t component = 0; component < rows[0].size(); ++component) {
      const Dims dims = wanted_dims(rows, component);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const Tensor& tensor = rows[i][component];
        tensors[i].push_back(
            padded(tensor, dims, Tensor::scalar(padding_of(component), tensor.dtype())));
      }
    }
    std::vector<Element> padded_rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      padded_rows.push_back(rows[i].with_tensors(std::move(tensors[i])));
    }
    return padded_rows;
  }

  double padding_of(std::size_t component) const {
    return component < options_.padding_values.size() ? options_.padding_values[component] : 0.0;
  }

  Dims wanted_dims(const std::vector<Element>& rows, std::size_t component) const {
    const Dims largest = largest_dims(rows, component);
    if (component >= options_.padded_shapes.size()) return largest;
    Dims dims = options_.padded_shapes[component];
    if (dims.size() != largest.size()) {
      fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: component '",
           rows[0].names()[component], "': expected a padded shape of rank ", largest.size(),
           ", got [", join(dims), "]");
    }
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == kLargest) dims[i] = largest[i];
      if (dims[i] >= largest[i]) continue;
      fail(ErrorCode::kInvalidArgument, "Dataset::padded_batch: component '",
           rows[0].names()[component], "': expected at most ", dims[i], " in dimension ", i,
           ", got an element with ", largest[i]);
    }
    return dims;
  }

  std::int64_t size_;
  const PaddedBatchOptions options_;
};

class PaddedBatchSource : public internal::ForwardingSource {
 public:
  PaddedBatchSource(Dataset plain, std::shared_ptr<const DatasetSource> below, std::int64_t size,
                    PaddedBatchOptions options)
      : ForwardingSource(std::move(below)),
        plain_(std::move(plain)),
        size_(size),
        options_(std::move(options)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<PaddedBatchIterator>(below().iterate(epoch), size_, options_);
  }
  SourcePtr over(SourcePtr below) const override {
    return Dataset(std::move(below)).padded_batch(size_, options_).shared_source();
  }
  std::optional<std::int64_t> cardinality() const override { return plain_.cardinality(); }
  std::optional<std::int64_t> batch_size() const override { return size_; }
  std::optional<int> batch_depth() const override {
    return internal::one_deeper(below().batch_depth());
  }
  bool may_end_in_partial_batch() const override {
    return plain_.source().may_end_in_partial_batch();
  }

 private:
  Dataset plain_;  // batch() with the same size, which counts the same
  std::int64_t size_;
  PaddedBatchOptions options_;
};

}  // namespace

Dataset Dataset::padded_batch(std::int64_t size, PaddedBatchOptions options) const {
  Dataset plain = batch(size, BatchOptions{.drop_remainder = options.drop_remainder});
  return Dataset(
      std::make_shared<PaddedBatchSource>(std::move(plain), source_, size, std::move(options)));
}

}  // namespace tutti
