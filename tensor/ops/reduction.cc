// Reductions over axes; cumulative sums and products, top_k and sorting along an axis.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/reduction.h"

#include <algorithm>

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Reductions over axes: argument checks and dispatch.

namespace {

using namespace internal;

std::uint32_t all_axes(const Shape& shape) { return (1u << shape.rank()) - 1u; }

std::uint32_t axis_bits(OpId op, const Operand& x, const std::vector<int>& axes) {
  if (axes.empty()) return all_axes(x.shape());
  std::uint32_t bits = 0;
  for (int axis : axes) {
    const std::uint32_t bit = 1u << checked_axis(to_string(op), x, axis, x.shape().rank());
    if (bits & bit) fail_op(op, x.where, "axis ", axis, " appears twice in [", join(axes), "]");
    bits |= bit;
  }
  return bits;
}

Shape reduced_shape(const Shape& shape, const AxesAttributes& attributes) {
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::size_t rank = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool reduced = attributes.axes >> axis & 1u;
    if (reduced && !attributes.keep_dims) continue;
    dims[rank++] = reduced ? 1 : shape.begin()[axis];
  }
  return Shape(std::span<const std::int64_t>(dims.data(), rank));
}

Tensor reduce(OpId op, const Operand& x, const ReduceOptions& options) {
  const Tensor& tensor = defined(op, x);
  const AxesAttributes attributes{axis_bits(op, x, options.axes), options.keep_dims};
  return dispatch_one({op,
                       {tensor},
                       {{reduced_shape(tensor.shape(), attributes), tensor.dtype()}},
                       attributes,
                       x.where});
}

void require_number(OpId op, const Operand& x) {
  if (defined(op, x).dtype() != DType::kBool) return;
  fail_op(op, x.where, "expected a numeric type, got bool of shape ", x.shape(), "; call cast()");
}

Tensor reduce_numbers(OpId op, const Operand& x, const ReduceOptions& options) {
  require_number(op, x);
  return reduce(op, x, options);
}

Tensor reduce_bools(OpId op, const Operand& x, const ReduceOptions& options) {
  require_dtype(op, x, DType::kBool);
  return reduce(op, x, options);
}

Tensor arg_extreme(OpId op, const Operand& x, int axis) {
  require_number(op, x);
  axis = checked_axis(to_string(op), x, axis, x.shape().rank());
  const Shape shape = x.shape().without_axis(axis);
  if (x.shape().dim(axis) == 0 && shape.num_elements() > 0) {
    fail_op(op, x.where, "axis ", axis, " of shape ", x.shape(), " has no elements");
  }
  return dispatch_one({op, {x.tensor}, {{shape, DType::kInt64}}, AxisAttributes{axis}, x.where});
}

}  // namespace

Tensor reduce_sum(const Operand& x, ReduceOptions options) {
  return reduce_numbers(OpId::kReduceSum, x, options);
}

Tensor reduce_mean(const Operand& x, ReduceOptions options) {
  require_floating(OpId::kReduceMean, x);
  return reduce(OpId::kReduceMean, x, options);
}

Tensor reduce_max(const Operand& x, ReduceOptions options) {
  return reduce_numbers(OpId::kReduceMax, x, options);
}

Tensor reduce_min(const Operand& x, ReduceOptions options) {
  return reduce_numbers(OpId::kReduceMin, x, options);
}

Tensor reduce_product(const Operand& x, ReduceOptions options) {
  return reduce_numbers(OpId::kReduceProduct, x, options);
}

Tensor reduce_any(const Operand& x, ReduceOptions options) {
  return reduce_bools(OpId::kReduceAny, x, options);
}

Tensor reduce_all(const Operand& x, ReduceOptions options) {
  return reduce_bools(OpId::kReduceAll, x, options);
}

Tensor argmax(const Operand& x, int axis) { return arg_extreme(OpId::kArgMax, x, axis); }

Tensor argmin(const Operand& x, int axis) { return arg_extreme(OpId::kArgMin, x, axis); }

Tensor sum_to_shape(const Operand& x, const Shape& shape) {
  constexpr OpId kOp = OpId::kReduceSum;
  const Shape from = defined(kOp, x).shape();
  if (from == shape) return x.tensor;
  if (try_broadcast(from, shape) != from) {
    fail(ErrorCode::kInvalidArgument, who("sum_to_shape", x.where), ": expected a shape that ",
         "broadcasts to ", from, ", got ", shape);
  }
  ReduceOptions options;
  options.keep_dims = true;
  const int added = from.rank() - shape.rank();
  for (int axis = 0; axis < from.rank(); ++axis) {
    const bool repeated = axis < added || shape.dim(axis - added) != from.dim(axis);
    if (repeated) options.axes.push_back(axis);
  }
  const Operand sum(reduce_sum(x, options), x.where);
  return added > 0 ? reshape(sum, shape) : sum.tensor;
}

// Reductions composed of other reductions.

namespace {

/// Removes the axes of length 1 that a reduction kept, unless options.keep_dims is set.
Tensor dropped(const Operand& x, Tensor kept, const ReduceOptions& options, OpId op) {
  if (options.keep_dims) return kept;
  const Shape shape = reduced_shape(x.shape(), {axis_bits(op, x, options.axes), false});
  return reshape(Operand(kept, x.where), shape);
}

}  // namespace

Tensor reduce_variance(const Operand& x, ReduceOptions options) {
  const Operand mean(reduce_mean(x, {options.axes, true}), x.where);
  const Operand apart(subtract(x, mean), x.where);
  return reduce_mean(Operand(square(apart), x.where), options);
}

Tensor reduce_std(const Operand& x, ReduceOptions options) {
  return sqrt(Operand(reduce_variance(x, options), x.where));
}

Tensor reduce_logsumexp(const Operand& x, ReduceOptions options) {
  require_floating(OpId::kExp, x);
  const Operand largest(stop_gradient(reduce_max(x, {options.axes, true})), x.where);
  // An infinite maximum would give inf - inf, which is NaN.
  const Operand base(where(isfinite(largest), largest, 0.0), x.where);
  const Operand sum(reduce_sum(Operand(exp(x - base), x.where), {options.axes, true}), x.where);
  return dropped(x, log(sum) + base, options, OpId::kReduceMax);
}

// Cumulative sums and products, top_k, and sorting.

Tensor cumulative_sum(const Operand& x, CumulativeSumOptions options) {
  constexpr OpId op = OpId::kCumulativeSum;
  require_number(op, x);
  const int axis = checked_axis(to_string(op), x, options.axis, x.shape().rank());
  return dispatch_unary(op, x, CumulativeSumAttributes{axis, options.exclusive, options.reverse});
}

TopKResult top_k(const Operand& x, std::int64_t k) {
  constexpr OpId op = OpId::kTopK;
  require_number(op, x);
  const Shape& shape = x.shape();
  if (shape.rank() < 1 || k < 0 || k > shape.dim(-1)) {
    fail_op(op, x.where, "expected [..., n] and k in 0 .. n, got shape ", shape, " and k ", k);
  }
  const Shape result = shape.with_dim(-1, k);
  std::vector<Tensor> outputs =
      dispatch({op, {x.tensor}, {{result, x.dtype()}, {result, DType::kInt64}}, {}, x.where});
  return {outputs[0], outputs[1]};
}

namespace {

/// Moves x by `distance` towards the end of an axis and fills the beginning with ones.
Tensor moved_behind_ones(const Operand& x, int axis, std::int64_t distance) {
  const auto rank = static_cast<std::size_t>(x.shape().rank());
  std::vector<std::int64_t> begin(rank, 0), before(rank, 0);
  std::vector<std::int64_t> size(x.shape().begin(), x.shape().end());
  const auto at = static_cast<std::size_t>(axis);
  before[at] = std::min(distance, size[at]);
  size[at] -= before[at];
  return pad(Operand(slice(x, begin, size), x.where), before, begin, 1.0);
}

/// Swaps `axis` and the last axis.
Tensor with_last(const Operand& x, int axis) {
  const int rank = x.shape().rank();
  if (axis == rank - 1) return x.tensor;
  std::vector<int> order;
  for (int a = 0; a < rank; ++a) order.push_back(a == axis ? rank - 1 : a == rank - 1 ? axis : a);
  return transpose(x, order);
}

/// Sorts along the last axis. For ascending order, x and the result are reversed, so that equal
/// elements keep their order.
TopKResult in_order(const Operand& x, bool descending) {
  const std::int64_t count = x.shape().dim(-1);
  if (descending) return top_k(x, count);
  const TopKResult largest = top_k(Operand(reverse(x, {-1}), x.where), count);
  const Tensor from_end = reverse(largest.indices, {-1});
  return {reverse(Operand(largest.values, x.where), {-1}), count - 1 - from_end};
}

TopKResult sorted(const char* name, const Operand& x, const SortOptions& options) {
  require_number(OpId::kTopK, x);
  const int axis = checked_axis(name, x, options.axis, x.shape().rank());
  const Operand last(with_last(x, axis), x.where);
  const TopKResult result = in_order(last, options.descending);
  return {with_last(Operand(result.values, x.where), axis), with_last(result.indices, axis)};
}

}  // namespace

Tensor cumulative_product(const Operand& x, CumulativeSumOptions options) {
  require_floating(OpId::kCumulativeSum, x);
  const int axis = checked_axis("cumulative_product", x, options.axis, x.shape().rank());
  const std::int64_t length = x.shape().dim(axis);
  Operand product = options.reverse ? Operand(reverse(x, {axis}), x.where) : x;
  if (options.exclusive) product = Operand(moved_behind_ones(product, axis, 1), x.where);
  // After each round, an element is the product of twice as many inputs (Hillis, Steele 1986).
  for (std::int64_t distance = 1; distance < length; distance *= 2) {
    product = Operand(multiply(product, moved_behind_ones(product, axis, distance)), x.where);
  }
  return options.reverse ? reverse(product, {axis}) : product.tensor;
}

Tensor sort(const Operand& x, SortOptions options) { return sorted("sort", x, options).values; }

Tensor argsort(const Operand& x, SortOptions options) {
  return sorted("argsort", x, options).indices;
}

}  // namespace tutti
