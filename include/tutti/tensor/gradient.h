// What a gradient can be: none, a dense tensor, or rows of one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Rows of a tensor of shape `dense_shape`: values[i] belongs to row indices[i]; a row may occur
/// several times, its values add up. values: [n, dense_shape[1:]]; indices: [n] int64.
/// tf.IndexedSlices.
struct IndexedSlices {
  Tensor values;
  Tensor indices;
  Shape dense_shape;

  /// The dense tensor; rows that occur several times are added in position order.
  Tensor to_dense() const;
};

/// The gradient of one source. A value type.
class Gradient {
 public:
  /// No path from target to source.
  Gradient() = default;
  Gradient(Tensor dense);
  Gradient(IndexedSlices slices);

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_dense() const { return std::holds_alternative<Tensor>(value_); }
  bool is_slices() const { return std::holds_alternative<IndexedSlices>(value_); }

  /// Each throws kFailedPrecondition saying what this gradient is instead.
  const Tensor& dense() const;
  const IndexedSlices& slices() const;
  /// The dense form of a dense or sparse gradient. Throws kFailedPrecondition when there is none.
  Tensor to_dense() const;

 private:
  std::variant<std::monostate, Tensor, IndexedSlices> value_;
};

}  // namespace tutti
