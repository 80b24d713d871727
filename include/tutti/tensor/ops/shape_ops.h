// Operations that move elements: reshaping, slicing, joining, repeating, gathering.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// Operations that move elements without computing.

/// Returns the elements of x in another shape. One dimension of `dims` may be -1: it is computed
/// from the others (0 if the tensor is empty and the others are not 0).
Tensor reshape(const Operand& x, const std::vector<std::int64_t>& dims);
Tensor reshape(const Operand& x, const Shape& shape);
/// `reshape(x, {2, -1})`.
inline Tensor reshape(const Operand& x, std::initializer_list<std::int64_t> dims) {
  return reshape(x, std::vector<std::int64_t>(dims));
}
/// [batch, ...] -> [batch, product of the rest].
Tensor flatten_rows(const Operand& x);
/// Insert, and remove, an axis of length 1.
Tensor expand_dims(const Operand& x, int axis);
Tensor squeeze(const Operand& x, int axis);

/// Axis i of the result is axis permutation[i] of x. Empty: all axes are reversed.
Tensor transpose(const Operand& x, const std::vector<int>& permutation = {});
/// Elements begin .. begin + size - 1 of each axis; size -1: up to the end.
Tensor slice(const Operand& x, const std::vector<std::int64_t>& begin,
             const std::vector<std::int64_t>& size);
/// Joins tensors of one dtype and of equal shape except along `axis`. At least one tensor.
Tensor concat(std::span<const Tensor> values, int axis,
              SourceLocation where = SourceLocation::current());
inline Tensor concat(std::initializer_list<Tensor> values, int axis,
                     SourceLocation where = SourceLocation::current()) {
  return concat(std::span<const Tensor>(values.begin(), values.size()), axis, where);
}
/// Splits x into equal parts. Throws kInvalidArgument if that is impossible. tf.split(x, n).
std::vector<Tensor> split(const Operand& x, int num_parts, int axis = 0);
/// Splits x into parts of the given sizes, whose sum must be the length of the axis.
std::vector<Tensor> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis = 0);
/// Adds before[i] and after[i] elements of `value` around axis i.
Tensor pad(const Operand& x, const std::vector<std::int64_t>& before,
           const std::vector<std::int64_t>& after, double value = 0.0);
/// Repeats x up to `shape`, by numpy's rules.
Tensor broadcast_to(const Operand& x, const Shape& shape);
/// indices (int32 or int64, any shape) -> shape + [depth]; an index outside 0 .. depth-1 gives a
/// row of `off` values.
Tensor one_hot(const Operand& indices, std::int64_t depth, DType dtype = DType::kFloat32,
               double on = 1.0, double off = 0.0);
/// Rows of params [rows, ...] at indices (int32 or int64, shape [...]) -> indices.shape +
/// params.shape[1:]. Throws kInvalidArgument naming an index out of range; on GPUs its row is 0.
/// The gradient with respect to params is IndexedSlices. tf.nn.embedding_lookup.
Tensor gather(const Operand& params, const Operand& indices);
/// Adds values [n, ...] to zeros of `dense_shape` at rows indices [n], in position order.
Tensor scatter_rows(const Operand& values, const Operand& indices, const Shape& dense_shape);

/// Adds values to zeros of `shape` at indices [..., d] (int32 or int64): each vector along their
/// last axis holds the first d coordinates, and values have the shape indices.shape[:-1] +
/// shape[d:]. Throws kInvalidArgument naming an index out of range. The host reads the indices, so
/// this waits for those of a GPU. tf.scatter_nd.
Tensor scatter(const Operand& indices, const Operand& values, const Shape& shape);
/// Returns the slices of x along the axes of `mask` where it is true, one after the other: [n,
/// rest...]. mask: bool, its shape that of the first axes of x. The host reads it. tf.boolean_mask.
Tensor boolean_mask(const Operand& x, const Operand& mask);
/// Returns the coordinates of the elements that are not zero (for bool: true) in row-major order:
/// int64 [n, rank of x]. The host reads x. tf.where with one argument; numpy.nonzero.
Tensor nonzero(const Operand& x);

/// Result of unique().
struct UniqueResult {
  Tensor values;
  Tensor indices;  // int64
};
/// Returns the distinct elements of x [n] in the order of their first occurrence, [m], and the
/// index of each element of x among them, [n]. Each NaN is distinct. The host reads x. No gradient.
/// tf.unique.
UniqueResult unique(const Operand& x);

// Operations that repeat, reverse or select along an axis, all but reverse() made of others.

/// Reverses the elements along each of `axes`. tf.reverse.
Tensor reverse(const Operand& x, const std::vector<int>& axes);
/// Moves element i to i + shift along the axis, wrapping around at its end. tf.roll.
Tensor roll(const Operand& x, std::int64_t shift, int axis);
/// x [..., rows, columns] with zeros above (tril) or below (triu) diagonal k. Diagonal 0 begins in
/// the upper left corner, and diagonal 1 is right of it. numpy.tril, numpy.triu.
Tensor tril(const Operand& x, std::int64_t k = 0);
Tensor triu(const Operand& x, std::int64_t k = 0);
/// Repeats x multiples[i] times along axis i. tf.tile.
Tensor tile(const Operand& x, const std::vector<std::int64_t>& multiples);
/// Repeats each element `count` times in a row along `axis`. tf.repeat with one number.
Tensor repeat(const Operand& x, std::int64_t count, int axis);
/// Joins tensors of one shape along a new axis. tf.stack.
Tensor stack(std::span<const Tensor> values, int axis = 0,
             SourceLocation where = SourceLocation::current());
inline Tensor stack(std::initializer_list<Tensor> values, int axis = 0,
                    SourceLocation where = SourceLocation::current()) {
  return stack(std::span<const Tensor>(values.begin(), values.size()), axis, where);
}
/// Splits x into slices along `axis`, which is removed: the inverse of stack(). tf.unstack.
std::vector<Tensor> unstack(const Operand& x, int axis = 0);
/// Returns the slices of x at `indices` (int32 or int64, any shape) along `axis`; the shape of the
/// indices replaces that axis. Throws for an index out of range; on GPUs its slice is 0. tf.gather.
Tensor gather(const Operand& x, const Operand& indices, int axis);

}  // namespace tutti
