// Reductions over axes, and running sums and largest elements along one: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/reduction.h"

#include "tutti/tensor/op_checks.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Reductions over axes: checks and calls.

namespace {

using namespace internal;

std::uint32_t all_axes(const Shape& shape) { return (1u << shape.rank()) - 1u; }

std::uint32_t axis_bits(OpId op, const Operand& x, const std::vector<int>& axes) {
  if (axes.empty()) return all_axes(x.shape());
  std::uint32_t bits = 0;
  for (int axis : axes) {
    const std::uint32_t bit = 1u << checked_axis(to_string(op), x, axis, x.shape().rank());
    if (bits & bit) fail_op(op, x.where, "axis ", axis, " stands twice in [", join(axes), "]");
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
  fail_op(op, x.where, "expected a number type, got bool of shape ", x.shape(), "; try cast()");
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

// Running sums and the largest elements: checks and calls.

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
    fail_op(op, x.where, "expected [..., n] and k of 0 .. n, got shape ", shape, " and k ", k);
  }
  const Shape result = shape.with_dim(-1, k);
  std::vector<Tensor> outputs =
      dispatch({op, {x.tensor}, {{result, x.dtype()}, {result, DType::kInt64}}, {}, x.where});
  return {outputs[0], outputs[1]};
}

}  // namespace tutti
