// Reductions over axes; cumulative sums and products, top_k and sorting along one axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// Reductions over axes.

/// Axes to reduce; empty: all. Negative axes count from the end.
struct ReduceOptions {
  std::vector<int> axes = {};
  /// If true, reduced axes are kept, with length 1; otherwise, they are removed.
  bool keep_dims = false;
};

/// Returns the sum, added in a fixed order that depends only on the shape. If there are no
/// elements, the sum is 0, the product 1 and the mean NaN, as in TensorFlow; the maximum is
/// -infinity or the lowest integer, and the minimum is +infinity or the highest integer.
Tensor reduce_sum(const Operand& x, ReduceOptions options = {});
/// Returns the mean. Floating-point types only.
Tensor reduce_mean(const Operand& x, ReduceOptions options = {});
/// Return the maximum, the minimum and the product. For their values over no elements, see
/// reduce_sum().
Tensor reduce_max(const Operand& x, ReduceOptions options = {});
Tensor reduce_min(const Operand& x, ReduceOptions options = {});
Tensor reduce_product(const Operand& x, ReduceOptions options = {});
/// Return the mean of (x - mean)^2, and its square root. Floating-point types only. Correspond to
/// tf.math.reduce_variance and tf.math.reduce_std.
Tensor reduce_variance(const Operand& x, ReduceOptions options = {});
Tensor reduce_std(const Operand& x, ReduceOptions options = {});
/// Returns log(sum(exp(x))), computed without overflow; -inf if there are no elements.
/// Floating-point types only. Corresponds to tf.reduce_logsumexp.
Tensor reduce_logsumexp(const Operand& x, ReduceOptions options = {});
/// Return true if any element (reduce_any) or every element (reduce_all) is true; bool only.
Tensor reduce_any(const Operand& x, ReduceOptions options = {});
Tensor reduce_all(const Operand& x, ReduceOptions options = {});

/// Overloads with tf's `axis` and `keepdims`: `reduce_sum(x, 1)`, `reduce_mean(x, -1, true)`. They
/// are templates so that `{}` in `reduce_sum(x, {})` is a ReduceOptions.
template <std::same_as<int> Axis>
Tensor reduce_sum(const Operand& x, Axis axis, bool keep_dims = false) {
  return reduce_sum(x, ReduceOptions{{axis}, keep_dims});
}
template <std::same_as<int> Axis>
Tensor reduce_mean(const Operand& x, Axis axis, bool keep_dims = false) {
  return reduce_mean(x, ReduceOptions{{axis}, keep_dims});
}
template <std::same_as<int> Axis>
Tensor reduce_max(const Operand& x, Axis axis, bool keep_dims = false) {
  return reduce_max(x, ReduceOptions{{axis}, keep_dims});
}
template <std::same_as<int> Axis>
Tensor reduce_min(const Operand& x, Axis axis, bool keep_dims = false) {
  return reduce_min(x, ReduceOptions{{axis}, keep_dims});
}

/// Return the int64 index of the first largest (smallest) element along `axis`; the result does not
/// have that axis.
Tensor argmax(const Operand& x, int axis = -1);
Tensor argmin(const Operand& x, int axis = -1);

/// Sums x down to `shape`: adds the elements that would be copies of each other if a tensor of
/// `shape` were broadcast to x's shape. This is the gradient of broadcasting.
Tensor sum_to_shape(const Operand& x, const Shape& shape);

// Cumulative sums and products, top_k and sorting along one axis.

struct CumulativeSumOptions {
  int axis = 0;
  /// If true, element i is the sum of the elements before i.
  bool exclusive = false;
  /// If true, sums from the end of the axis.
  bool reverse = false;
};
/// Returns running sums along an axis. Numeric types only; floats are added in double, except under
/// XLA. Corresponds to tf.cumsum.
Tensor cumulative_sum(const Operand& x, CumulativeSumOptions options = {});

/// Returns running products along an axis, like tf.math.cumprod. Floating-point types only.
Tensor cumulative_product(const Operand& x, CumulativeSumOptions options = {});

/// Result of top_k(): elements and their indices along the last axis.
struct TopKResult {
  Tensor values;
  Tensor indices;  // int64
};
/// Returns the k largest elements along the last axis, largest first, and their indices: [..., n]
/// -> [..., k]. Equal elements keep their order; NaN counts as the largest value. Corresponds to
/// tf.math.top_k.
TopKResult top_k(const Operand& x, std::int64_t k);

struct SortOptions {
  int axis = -1;
  bool descending = false;
};
/// Sorts the elements along an axis; NaN counts as the largest value. Corresponds to tf.sort.
Tensor sort(const Operand& x, SortOptions options = {});
/// Returns the int64 index in x, along the axis, of each element of sort(x). Equal elements keep
/// their order, even in a descending sort. Corresponds to tf.argsort with stable=True.
Tensor argsort(const Operand& x, SortOptions options = {});

}  // namespace tutti
