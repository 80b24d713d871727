// Elements of datasets: ordered lists of named tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Ordered list of components, each a tensor with a name (by default "features", "labels",
/// "sample_weight", "component_3", ...). After batch(), the first dimension of every component is
/// the number of rows. A value type.
class Element {
 public:
  /// Creates an element without components.
  Element();
  /// Creates an element with the default names. Throws kInvalidArgument for an undefined tensor.
  explicit Element(std::vector<Tensor> tensors);
  /// Throws kInvalidArgument unless there is one name per component and no name occurs twice.
  Element(std::vector<Tensor> tensors, std::vector<std::string> names);

  std::size_t size() const { return tensors_.size(); }
  /// Throws kOutOfRange, listing the names, if there is no component with this index.
  const Tensor& operator[](std::size_t index) const;
  /// Throws kNotFound, listing the names, if there is no component with this name.
  const Tensor& at(const std::string& name) const;
  bool has(const std::string& name) const;
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& names() const { return *names_; }

  /// Returns the number of rows: the first dimension of every component. Throws kFailedPrecondition
  /// ("not batched") if components are scalars or their first dimensions differ.
  std::int64_t rows() const;
  /// Returns the number of rows of the global batch that this element is a slice of; rows() if it
  /// is not a slice.
  std::int64_t global_rows() const { return global_rows_ >= 0 ? global_rows_ : rows(); }
  /// Returns the index of this element's first row in the global batch; 0 if it is not a slice.
  std::int64_t first_row() const { return first_row_; }

  /// Returns rows [first, first + count), sharing storage, and keeps global_rows() and first_row()
  /// correct. Throws kInvalidArgument unless the rows exist.
  Element slice_rows(std::int64_t first, std::int64_t count) const;
  /// Returns a copy of this element that is marked as rows [first_row, ...) of a global batch of
  /// `global_rows` rows.
  Element placed_in(std::int64_t first_row, std::int64_t global_rows) const {
    Element placed = *this;
    placed.first_row_ = first_row;
    placed.global_rows_ = global_rows;
    return placed;
  }
  /// Returns the element with every component on `device`.
  Element to(Device device) const;
  /// Returns an element with the same names and row numbers, but with `tensors` as components.
  /// Requires: one tensor per component of this element.
  Element with_tensors(std::vector<Tensor> tensors) const;

 private:
  std::vector<Tensor> tensors_;
  std::shared_ptr<const std::vector<std::string>> names_;  // shared by the elements of a dataset
  std::int64_t global_rows_ = -1;
  std::int64_t first_row_ = 0;
};

/// Thin wrapper around an element, for training loops: `auto [x, y] = batch;`.
class Batch {
 public:
  Batch() = default;
  explicit Batch(Element element) : element_(std::move(element)) {}

  const Tensor& features() const { return element_[0]; }
  /// Throws kNotFound if there is no second component.
  const Tensor& labels() const;
  bool has_labels() const { return element_.size() > 1; }
  /// Returns an undefined tensor if there are no weights.
  Tensor sample_weight() const;
  const Tensor& operator[](std::size_t index) const { return element_[index]; }
  const Tensor& at(const std::string& name) const { return element_.at(name); }
  std::int64_t rows() const { return element_.rows(); }
  std::int64_t global_rows() const { return element_.global_rows(); }
  const Element& element() const { return element_; }

  template <std::size_t I>
  const Tensor& get() const {
    if constexpr (I == 0)
      return features();
    else
      return labels();
  }

 private:
  Element element_;
};

}  // namespace tutti

template <>
struct std::tuple_size<tutti::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I>
struct std::tuple_element<I, tutti::Batch> {
  using type = const tutti::Tensor;
};
