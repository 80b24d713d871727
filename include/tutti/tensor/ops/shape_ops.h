// Operations that move elements: reshaping, slicing, joining, repeating, gathering.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// Operations that move elements without computing.

/// Returns the elements of x in another shape. One dimension may be -1 and is then computed from
/// the other dimensions (0 if x is empty and no other dimension is 0).
Tensor reshape(const Operand& x, const std::vector<std::int64_t>& dims);
Tensor reshape(const Operand& x, const Shape& shape);
/// Overload for braces: `reshape(x, {2, -1})`.
inline Tensor reshape(const Operand& x, std::initializer_list<std::int64_t> dims) {
  return reshape(x, std::vector<std::int64_t>(dims));
}
/// Reshapes x [batch, ...] to [batch, product of the other dimensions].
Tensor flatten_rows(const Operand& x);
/// Insert or remove an axis of length 1.
Tensor expand_dims(const Operand& x, int axis);
Tensor squeeze(const Operand& x, int axis);

/// Permutes axes: axis i of the result is axis permutation[i] of x. An empty permutation reverses
/// the order of axes.
Tensor transpose(const Operand& x, const std::vector<int>& permutation = {});
/// Returns elements begin[i] .. begin[i] + size[i] - 1 of each axis i; a size of -1 means up to the
/// end.
Tensor slice(const Operand& x, const std::vector<std::int64_t>& begin,
             const std::vector<std::int64_t>& size);
/// Joins one or more tensors along `axis`. All must have the same dtype and, except along `axis`,
/// the same shape.
Tensor concat(std::span<const Tensor> values, int axis,
              SourceLocation where = SourceLocation::current());
inline Tensor concat(std::initializer_list<Tensor> values, int axis,
                     SourceLocation where = SourceLocation::current()) {
  return concat(std::span<const Tensor>(values.begin(), values.size()), axis, where);
}
/// Splits x into `num_parts` parts of equal size. Throws kInvalidArgument if num_parts does not
/// divide the length of the axis. Corresponds to tf.split(x, n).
std::vector<Tensor> split(const Operand& x, int num_parts, int axis = 0);
/// Splits x into parts of the given sizes, whose sum must be the length of the axis.
std::vector<Tensor> split(const Operand& x, const std::vector<std::int64_t>& sizes, int axis = 0);
/// Pads axis i with `value`: before[i] elements at its beginning, and after[i] at its end.
Tensor pad(const Operand& x, const std::vector<std::int64_t>& before,
           const std::vector<std::int64_t>& after, double value = 0.0);
/// Repeats x so that it has `shape`, by numpy's broadcasting rules.
Tensor broadcast_to(const Operand& x, const Shape& shape);
/// Returns, for each index, a row of `depth` elements that is `on` at the index and `off`
/// elsewhere: indices (int32 or int64, any shape) -> indices.shape + [depth]. An index outside 0 ..
/// depth-1 gives a row of `off`.
Tensor one_hot(const Operand& indices, std::int64_t depth, DType dtype = DType::kFloat32,
               double on = 1.0, double off = 0.0);
/// Returns the rows of params [rows, ...] at indices (int32 or int64, any shape). The result has
/// the shape indices.shape + params.shape[1:]. If an index is out of range, throws
/// kInvalidArgument, naming the index, on CPUs; on GPUs, its row is zero, and under XLA, it is the
/// first or last row. The gradient with respect to params is IndexedSlices. Corresponds to
/// tf.nn.embedding_lookup.
Tensor gather(const Operand& params, const Operand& indices);
/// Adds the rows of values [n, ...], in this order, to a zero tensor of `dense_shape`, at the rows
/// given by indices [n].
Tensor scatter_rows(const Operand& values, const Operand& indices, const Shape& dense_shape);

/// Adds values to a zero tensor of `shape` at indices [..., d] (int32 or int64). Each vector along
/// the last axis of indices contains the first d coordinates, and values have the shape
/// indices.shape[:-1] + shape[d:]. Throws kInvalidArgument, naming the index, if an index is out of
/// range. The host reads the indices, so it waits for them if they are on a GPU. Corresponds to
/// tf.scatter_nd.
Tensor scatter(const Operand& indices, const Operand& values, const Shape& shape);
/// Returns the n slices of x at which `mask` is true: [n, remaining axes of x]. mask: bool, with
/// the shape of the first axes of x. The host reads the mask. Corresponds to tf.boolean_mask.
Tensor boolean_mask(const Operand& x, const Operand& mask);
/// Returns the coordinates of the elements that are not zero (or are true, for bool), in row-major
/// order: int64 [n, rank of x]. The host reads x. Corresponds to tf.where with one argument and to
/// numpy.nonzero.
Tensor nonzero(const Operand& x);

/// Result of unique().
struct UniqueResult {
  Tensor values;
  Tensor indices;  // int64
};
/// Returns the m distinct elements of x [n] in order of first occurrence, and, for each element of
/// x, its index among the distinct elements: values [m], indices [n]. Each NaN is distinct. The
/// host reads x. Not differentiable. Corresponds to tf.unique.
UniqueResult unique(const Operand& x);

// Operations that repeat, reverse or select elements along an axis. All except reverse() are
// composed of other operations.

/// Reverses the elements along each of `axes`. Corresponds to tf.reverse.
Tensor reverse(const Operand& x, const std::vector<int>& axes);
/// Moves element i to i + shift along the axis, wrapping around at its end. Corresponds to tf.roll.
Tensor roll(const Operand& x, std::int64_t shift, int axis);
/// Return x [..., rows, columns] with zeros above (tril) or below (triu) diagonal k. Diagonal 0
/// begins in the upper left corner; diagonal 1 is one column to its right. Correspond to numpy.tril
/// and numpy.triu.
Tensor tril(const Operand& x, std::int64_t k = 0);
Tensor triu(const Operand& x, std::int64_t k = 0);
/// Repeats x multiples[i] times along axis i. Corresponds to tf.tile.
Tensor tile(const Operand& x, const std::vector<std::int64_t>& multiples);
/// Repeats each element `count` times in succession along `axis`, like tf.repeat with a scalar.
Tensor repeat(const Operand& x, std::int64_t count, int axis);
/// Joins tensors of equal shape along a new axis. Corresponds to tf.stack.
Tensor stack(std::span<const Tensor> values, int axis = 0,
             SourceLocation where = SourceLocation::current());
inline Tensor stack(std::initializer_list<Tensor> values, int axis = 0,
                    SourceLocation where = SourceLocation::current()) {
  return stack(std::span<const Tensor>(values.begin(), values.size()), axis, where);
}
/// Splits x along `axis` into slices without that axis: the inverse of stack(). Corresponds to
/// tf.unstack.
std::vector<Tensor> unstack(const Operand& x, int axis = 0);
/// Returns the slices of x at `indices` (int32 or int64, any shape) along `axis`; the shape of the
/// indices replaces that axis. If an index is out of range, throws kInvalidArgument on CPUs; on
/// GPUs, its slice is zero, and under XLA, it is the first or last slice. Corresponds to tf.gather.
Tensor gather(const Operand& x, const Operand& indices, int axis);

}  // namespace tutti
