// Reductions over axes; cumulative sums, largest elements and sorting along one.
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
  /// True keeps the reduced axes, with length 1.
  bool keep_dims = false;
};

/// Sums are added in a fixed order that depends only on the shape. Without elements the sum is 0,
/// the product 1, and the mean NaN as in tf; max and min are the type's lowest and highest value.
Tensor reduce_sum(const Operand& x, ReduceOptions options = {});
/// The mean, of floating types only.
Tensor reduce_mean(const Operand& x, ReduceOptions options = {});
/// The largest element, the smallest, and the product of all; without elements as for reduce_sum().
Tensor reduce_max(const Operand& x, ReduceOptions options = {});
Tensor reduce_min(const Operand& x, ReduceOptions options = {});
Tensor reduce_product(const Operand& x, ReduceOptions options = {});
/// The mean of (x - mean)^2, and its square root. Floating types only. tf.math.reduce_variance,
/// tf.math.reduce_std.
Tensor reduce_variance(const Operand& x, ReduceOptions options = {});
Tensor reduce_std(const Operand& x, ReduceOptions options = {});
/// log(sum(exp(x))) without overflow; -inf without elements. Floating types. tf.reduce_logsumexp.
Tensor reduce_logsumexp(const Operand& x, ReduceOptions options = {});
/// True if any element is true, and if all are; bool only.
Tensor reduce_any(const Operand& x, ReduceOptions options = {});
Tensor reduce_all(const Operand& x, ReduceOptions options = {});

/// `reduce_sum(x, 1)` and `reduce_mean(x, -1, true)`, as with tf's `axis` and `keepdims`.
/// (Templates so that `reduce_sum(x, {})` means ReduceOptions.)
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

/// Index of the first largest (smallest) element along `axis`, int64, without that axis.
Tensor argmax(const Operand& x, int axis = -1);
Tensor argmin(const Operand& x, int axis = -1);

/// Sums x, which has a shape that broadcasting gave, back to `shape`: the gradient of broadcasting.
Tensor sum_to_shape(const Operand& x, const Shape& shape);

// Cumulative sums, largest elements and sorting along one axis.

struct CumulativeSumOptions {
  int axis = 0;
  /// Excludes the element itself.
  bool exclusive = false;
  /// Sums from the end.
  bool reverse = false;
};
/// Running sums along an axis, numbers only; floats are added in double. tf.cumsum.
Tensor cumulative_sum(const Operand& x, CumulativeSumOptions options = {});

/// Running products along an axis, floating types only. tf.math.cumprod.
Tensor cumulative_product(const Operand& x, CumulativeSumOptions options = {});

/// Result of top_k(): elements, and their positions along the last axis.
struct TopKResult {
  Tensor values;
  Tensor indices;  // int64
};
/// The k largest elements along the last axis, largest first, and their positions: [..., n] ->
/// [..., k]. Equal elements keep their order; NaN counts as the largest. tf.math.top_k.
TopKResult top_k(const Operand& x, std::int64_t k);

struct SortOptions {
  int axis = -1;
  bool descending = false;
};
/// Sorts the elements along an axis; NaN counts as the largest. tf.sort.
Tensor sort(const Operand& x, SortOptions options = {});
/// Returns the int64 positions in x of the elements of sort(x). Equal elements keep their order, in
/// either direction. tf.argsort with stable=True.
Tensor argsort(const Operand& x, SortOptions options = {});

}  // namespace tutti
