// Gradients: none, a dense tensor, or rows of one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Rows of a tensor of shape `dense_shape`: values[i] is added to row indices[i], which may occur
/// several times. values: [n, dense_shape[1:]]; indices: [n] int64. tf.IndexedSlices.
struct IndexedSlices {
  Tensor values;
  Tensor indices;
  Shape dense_shape;

  /// Returns the dense tensor; rows that occur several times are added in position order.
  Tensor to_dense() const;
};

/// Gradient with respect to one source. A value type.
class Gradient {
 public:
  /// Creates an empty gradient: no path leads from target to source.
  Gradient() = default;
  Gradient(Tensor dense);
  Gradient(IndexedSlices slices);

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_dense() const { return std::holds_alternative<Tensor>(value_); }
  bool is_slices() const { return std::holds_alternative<IndexedSlices>(value_); }

  /// Return the value of this form. Throw kFailedPrecondition naming the form if it is another one.
  const Tensor& dense() const;
  const IndexedSlices& slices() const;
  /// Returns the dense form of the gradient. Throws kFailedPrecondition if it is empty.
  Tensor to_dense() const;

 private:
  std::variant<std::monostate, Tensor, IndexedSlices> value_;
};

}  // namespace tutti
