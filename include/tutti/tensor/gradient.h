// Gradients: empty, a dense tensor, or rows of a tensor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Rows to be added to a tensor of shape `dense_shape`: values[i] belongs to row indices[i], and a
/// row may occur several times. values: [n, dense_shape[1:]]; indices: [n] int64. Equivalent of
/// tf.IndexedSlices.
struct IndexedSlices {
  Tensor values;
  Tensor indices;
  Shape dense_shape;

  /// Returns the dense tensor; the values of repeated rows are added in order.
  Tensor to_dense() const;
};

/// Gradient with respect to one source. A value type.
class Gradient {
 public:
  /// Creates an empty gradient (is_none()), for a source from which no path leads to the target.
  Gradient() = default;
  Gradient(Tensor dense);
  Gradient(IndexedSlices slices);

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_dense() const { return std::holds_alternative<Tensor>(value_); }
  bool is_slices() const { return std::holds_alternative<IndexedSlices>(value_); }

  /// Return the dense tensor or the slices. Throw kFailedPrecondition, naming the actual form, if
  /// the gradient has another form.
  const Tensor& dense() const;
  const IndexedSlices& slices() const;
  /// Returns the dense form of the gradient. Throws kFailedPrecondition for an empty gradient.
  Tensor to_dense() const;

 private:
  std::variant<std::monostate, Tensor, IndexedSlices> value_;
};

}  // namespace tutti
