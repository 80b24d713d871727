// Running sums and the largest elements: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/scanning.h"

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

using namespace internal;

void require_number(OpId op, const Operand& x) {
  if (defined(op, x).dtype() != DType::kBool) return;
  fail_op(op, x.where, "expected a number type, got bool of shape ", x.shape(), "; try cast()");
}

}  // namespace

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
