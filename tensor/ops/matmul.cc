// Matrix products: argument checks and dispatch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/matmul.h"

#include <algorithm>

#include "tensor/op_checks.h"

namespace tutti {
namespace {

using namespace internal;

void check_kinds(const Operand& a, const Operand& b) {
  defined(OpId::kMatMul, a);
  defined(OpId::kMatMul, b);
  require_floating(OpId::kMatMul, a);
  require_same_dtype(OpId::kMatMul, a.tensor, b.tensor, a.where);
  if (a.shape().rank() < 2 || b.shape().rank() < 2) {
    fail_op(OpId::kMatMul, a.where, "expected matrices [..., m, k] and [..., k, n], got ",
            a.shape(), " and ", b.shape(), "; call expand_dims()");
  }
}

// Returns the shape of the product. Its batch dimensions are those of the operand that has them.
Shape product_shape(const Operand& a, const Operand& b, const MatMulOptions& options) {
  const Shape& sa = a.shape();
  const Shape& sb = b.shape();
  const std::int64_t m = sa.dim(options.transpose_a ? -1 : -2);
  const std::int64_t ka = sa.dim(options.transpose_a ? -2 : -1);
  const std::int64_t kb = sb.dim(options.transpose_b ? -1 : -2);
  const std::int64_t n = sb.dim(options.transpose_b ? -2 : -1);
  const auto batch = [](const Shape& s) { return s.dims().first(s.dims().size() - 2); };
  const bool batches_fit =
      sa.rank() == 2 || sb.rank() == 2 || std::ranges::equal(batch(sa), batch(sb));
  if (ka != kb || !batches_fit) {
    fail_op(OpId::kMatMul, a.where, "shapes do not fit; expected a [..., m, k] and b [..., k, n]",
            options.transpose_a ? " with transpose_a" : "",
            options.transpose_b ? " with transpose_b" : "", ", got ", sa, " and ", sb,
            ka != kb ? "; use transpose_a or transpose_b" : "; call broadcast_to()");
  }
  const Shape& longer = sa.rank() >= sb.rank() ? sa : sb;
  return longer.with_dim(-2, m).with_dim(-1, n);
}

}  // namespace

Tensor matmul(const Operand& a, const Operand& b, MatMulOptions options) {
  check_kinds(a, b);
  const Shape shape = product_shape(a, b, options);
  return dispatch_one(
      {OpId::kMatMul,
       {a.tensor, b.tensor},
       {{shape, a.dtype()}},
       MatMulAttributes{options.transpose_a, options.transpose_b, FusedActivation::kNone},
       a.where});
}

Tensor dense(const Operand& x, const Operand& kernel, const Operand& bias,
             FusedActivation activation) {
  check_kinds(x, kernel);
  defined(OpId::kMatMul, bias);
  require_same_dtype(OpId::kMatMul, x.tensor, bias.tensor, x.where);
  if (kernel.shape().rank() != 2 || x.shape()[-1] != kernel.shape()[0]) {
    fail_op(OpId::kMatMul, x.where, "expected x [batch, ..., in] and kernel [in, out], got ",
            x.shape(), " and ", kernel.shape(),
            kernel.shape().rank() == 2 && x.shape().rank() > 2 ? "; call flatten_rows(x)" : "");
  }
  const Shape shape = product_shape(x, kernel, {});
  if (bias.shape() != Shape{shape[-1]}) {
    fail_op(OpId::kMatMul, x.where, "the bias does not fit; expected [", shape[-1], "], got ",
            bias.shape());
  }
  return dispatch_one({OpId::kMatMul,
                       {x.tensor, kernel.tensor, bias.tensor},
                       {{shape, x.dtype()}},
                       MatMulAttributes{false, false, activation},
                       x.where});
}

}  // namespace tutti
