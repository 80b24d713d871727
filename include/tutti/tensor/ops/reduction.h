// Reductions over axes, and running sums and largest elements along one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti {

// Reductions over axes.

/// Which axes go away; empty: all. Negative axes count from the end.
struct ReduceOptions {
  std::vector<int> axes = {};
  /// Whether they stay, with length 1.
  bool keep_dims = false;
};

/// Sums are added along a fixed order that depends on the shape alone. The sum of nothing is 0, the
/// product 1; the mean of nothing is NaN as in tf; max and min of nothing are the type's lowest and
/// highest value (-inf, inf).
Tensor reduce_sum(const Operand& x, ReduceOptions options = {});
/// The mean, of floating types only.
Tensor reduce_mean(const Operand& x, ReduceOptions options = {});
/// The largest element, the smallest, and the product of all: see reduce_sum() for none.
Tensor reduce_max(const Operand& x, ReduceOptions options = {});
Tensor reduce_min(const Operand& x, ReduceOptions options = {});
Tensor reduce_product(const Operand& x, ReduceOptions options = {});
/// The mean of (x - mean)^2, and its root. Floating types only. tf.math.reduce_variance,
/// tf.math.reduce_std.
Tensor reduce_variance(const Operand& x, ReduceOptions options = {});
Tensor reduce_std(const Operand& x, ReduceOptions options = {});
/// log(sum(exp(x))) without overflow; of nothing -inf. Floating types only. tf.reduce_logsumexp.
Tensor reduce_logsumexp(const Operand& x, ReduceOptions options = {});
/// Whether any is true, and whether all are; bool only.
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

/// x of a shape that broadcasting gave, summed back to `shape`: the gradient of broadcasting.
Tensor sum_to_shape(const Operand& x, const Shape& shape);

// Operations along one axis whose result at an element depends on its neighbours: running sums and
// the largest elements.

struct CumulativeSumOptions {
  int axis = 0;
  /// Leave the element itself out.
  bool exclusive = false;
  /// From the end.
  bool reverse = false;
};
/// The sum of all elements up to here along an axis, numbers only; floats are added in double.
/// tf.cumsum.
Tensor cumulative_sum(const Operand& x, CumulativeSumOptions options = {});

/// The product of all elements up to here along an axis, floating types only. tf.math.cumprod.
Tensor cumulative_product(const Operand& x, CumulativeSumOptions options = {});

/// Elements, and their places along the last axis.
struct TopKResult {
  Tensor values;
  Tensor indices;  // int64
};
/// The k largest elements along the last axis, largest first, and where they stand: [..., n] ->
/// [..., k]. Among equal ones the first comes first; NaN counts as the largest. tf.math.top_k.
TopKResult top_k(const Operand& x, std::int64_t k);

struct SortOptions {
  int axis = -1;
  bool descending = false;
};
/// The elements along an axis in order; NaN counts as the largest. tf.sort.
Tensor sort(const Operand& x, SortOptions options = {});
/// int64: where the elements of sort(x) stand in x; among equal ones the first comes first, in
/// either direction. tf.argsort with stable=True.
Tensor argsort(const Operand& x, SortOptions options = {});

}  // namespace tutti
