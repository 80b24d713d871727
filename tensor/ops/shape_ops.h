// Operations that move elements without computing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "tutti/tensor/operand.h"

namespace tutti {

/// One dimension of `dims` may be -1: it takes what is left (0 when the tensor is empty and the
/// rest is not 0).
Tensor reshape(const Operand& x, const std::vector<std::int64_t>& dims);
Tensor reshape(const Operand& x, const Shape& shape);
/// `reshape(x, {2, -1})`.
inline Tensor reshape(const Operand& x, std::initializer_list<std::int64_t> dims) {
  return reshape(x, std::vector<std::int64_t>(dims));
}
/// [batch, ...] -> [batch, product of the rest].
Tensor flatten_rows(const Operand& x);
Tensor expand_dims(const Operand& x, int axis);
Tensor squeeze(const Operand& x, int axis);

/// Axis i of the result is axis permutation[i] of x. Empty: reverse all axes.
Tensor transpose(const Operand& x, const std::vector<int>& permutation = {});
/// Elements begin .. begin + size - 1 of each axis; size -1: up to the end.
Tensor slice(const Operand& x, const std::vector<std::int64_t>& begin,
             const std::vector<std::int64_t>& size);
/// All of one dtype and of equal shape but for `axis`. At least one tensor.
Tensor concat(std::span<const Tensor> values, int axis,
              SourceLocation where = SourceLocation::current());
inline Tensor concat(std::initializer_list<Tensor> values, int axis,
                     SourceLocation where = SourceLocation::current()) {
  return concat(std::span<const Tensor>(values.begin(), values.size()), axis, where);
}
/// A new first axis.
Tensor stack(std::span<const Tensor> values, SourceLocation where = SourceLocation::current());
/// Equal parts; throws kInvalidArgument naming sizes when the axis does not divide. tf.split(x, n).
std::vector<Tensor> split(const Operand& x, int num_parts, int axis = 0);
/// Parts of the given sizes, whose sum must be the axis's length.
std::vector<Tensor> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis = 0);
/// before[i] and after[i] elements of `value` around axis i.
Tensor pad(const Operand& x, const std::vector<std::int64_t>& before,
           const std::vector<std::int64_t>& after, double value = 0.0);
Tensor broadcast_to(const Operand& x, const Shape& shape);
/// indices (int32 or int64, any shape) -> shape + [depth]; an index outside 0 .. depth-1 gives a
/// row of `off` values.
Tensor one_hot(const Operand& indices, std::int64_t depth, DType dtype = DType::kFloat32,
               double on = 1.0, double off = 0.0);
/// Rows of params [rows, ...] at indices (int32 or int64, shape [...]) -> indices.shape +
/// params.shape[1:]. An index out of range throws kInvalidArgument naming it. The gradient with
/// respect to params is IndexedSlices. tf.nn.embedding_lookup.
Tensor gather(const Operand& params, const Operand& indices);
/// values [n, ...] added into zeros of `dense_shape` at rows indices [n], in position order.
Tensor scatter_rows(const Operand& values, const Operand& indices, const Shape& dense_shape);

}  // namespace tutti
