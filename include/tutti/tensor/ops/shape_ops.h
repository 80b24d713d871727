// Operations that move elements: other shapes, parts, repeated or picked along an axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// Operations that move elements without computing.

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
/// With a new axis of length 1; without an axis of length 1.
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
/// Equal parts; throws kInvalidArgument naming sizes when the axis does not divide. tf.split(x, n).
std::vector<Tensor> split(const Operand& x, int num_parts, int axis = 0);
/// Parts of the given sizes, whose sum must be the axis's length.
std::vector<Tensor> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis = 0);
/// before[i] and after[i] elements of `value` around axis i.
Tensor pad(const Operand& x, const std::vector<std::int64_t>& before,
           const std::vector<std::int64_t>& after, double value = 0.0);
/// x repeated up to `shape`, by numpy's rules.
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

/// values added into zeros of `shape` where indices [..., d] (int32 or int64) say: each of their
/// last axis names the first d coordinates, values have the shape indices.shape[:-1] +
/// shape[d:]. An index out of range throws kInvalidArgument naming it: the indices are read on the
/// host, so of a GPU's it waits for them. tf.scatter_nd.
Tensor scatter(const Operand& indices, const Operand& values, const Shape& shape);
/// The slices of x along the axes of mask (bool, its shape that of x's first axes) where it is
/// true, one behind the other: [n, rest...]. It reads the mask on the host. tf.boolean_mask.
Tensor boolean_mask(const Operand& x, const Operand& mask);
/// int64: the coordinates of the elements that are not zero (of bool: that are true), in row-major
/// order: [n, rank of x]. It reads x on the host. tf.where with one argument; NumPy's and PyTorch's
/// nonzero.
Tensor nonzero(const Operand& x);

/// Of unique().
struct UniqueResult {
  Tensor values;
  Tensor indices;  // int64
};
/// The different elements of x [n] in the order in which they come first, [m], and for each element
/// of x its place among them, [n]. Each NaN is an element of its own. It reads x on the host, and
/// no gradient flows back. tf.unique.
UniqueResult unique(const Operand& x);

// Operations that repeat, turn round or pick elements along an axis; made of others but for
// reverse().

/// The elements of each of `axes` in opposite order. tf.reverse.
Tensor reverse(const Operand& x, const std::vector<int>& axes);
/// Element i goes to i + shift along the axis, around its end. tf.roll.
Tensor roll(const Operand& x, std::int64_t shift, int axis);
/// x [..., rows, columns] with zeros above (tril) or below (triu) diagonal k; diagonal 0 begins in
/// the upper left corner, 1 lies right of it. numpy.tril, numpy.triu.
Tensor tril(const Operand& x, std::int64_t k = 0);
Tensor triu(const Operand& x, std::int64_t k = 0);
/// x, multiples[i] times along axis i. tf.tile.
Tensor tile(const Operand& x, const std::vector<std::int64_t>& multiples);
/// Each element `count` times in a row along `axis`. tf.repeat with one number.
Tensor repeat(const Operand& x, std::int64_t count, int axis);
/// Tensors of one shape along a new axis. tf.stack.
Tensor stack(std::span<const Tensor> values, int axis = 0,
             SourceLocation where = SourceLocation::current());
inline Tensor stack(std::initializer_list<Tensor> values, int axis = 0,
                    SourceLocation where = SourceLocation::current()) {
  return stack(std::span<const Tensor>(values.begin(), values.size()), axis, where);
}
/// The parts of length 1 along `axis`, without it: the inverse of stack. tf.unstack.
std::vector<Tensor> unstack(const Operand& x, int axis = 0);
/// The slices of x at `indices` (int32 or int64, any shape) along `axis`, whose place in the
/// result's shape the shape of the indices takes. An index out of range throws. tf.gather.
Tensor gather(const Operand& x, const Operand& indices, int axis);

}  // namespace tutti
