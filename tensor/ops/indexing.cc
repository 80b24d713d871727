// Operations with indices: one_hot, gather, scatter_rows.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/checks.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

using namespace internal;

Tensor one_hot(const Operand& indices, std::int64_t depth, DType dtype, double on, double off) {
  constexpr OpId kOp = OpId::kOneHot;
  require_index(kOp, indices);
  if (depth < 0) fail_op(kOp, indices.where, "expected a depth of 0 or more, got ", depth);
  std::vector<std::int64_t> dims(indices.shape().begin(), indices.shape().end());
  dims.push_back(depth);
  return dispatch_one(
      {kOp, {indices.tensor}, {{Shape(dims), dtype}}, OneHotAttributes{on, off}, indices.where});
}

Tensor gather(const Operand& params, const Operand& indices) {
  constexpr OpId kOp = OpId::kGather;
  const Tensor& tensor = defined(kOp, params);
  require_index(kOp, indices);
  if (tensor.rank() == 0) {
    fail_op(kOp, params.where, "expected params of shape [rows, ...], got shape []");
  }
  std::vector<std::int64_t> dims(indices.shape().begin(), indices.shape().end());
  dims.insert(dims.end(), tensor.shape().begin() + 1, tensor.shape().end());
  return dispatch_one(
      {kOp, {tensor, indices.tensor}, {{Shape(dims), tensor.dtype()}}, {}, params.where});
}

Tensor scatter_rows(const Operand& values, const Operand& indices, const Shape& dense_shape) {
  constexpr OpId kOp = OpId::kScatterRows;
  const Tensor& tensor = defined(kOp, values);
  require_index(kOp, indices);
  if (tensor.dtype() == DType::kBool) {
    fail_op(kOp, values.where, "expected a number type, got bool; try cast()");
  }
  const bool fits = indices.shape().rank() == 1 && dense_shape.rank() >= 1 &&
                    tensor.shape() == dense_shape.with_dim(0, indices.shape().dim(0));
  if (!fits) {
    fail_op(kOp, values.where, "expected indices [n] and values [n, ...] that fit ", dense_shape,
            ", got indices ", indices.shape(), " and values ", tensor.shape());
  }
  return dispatch_one(
      {kOp, {tensor, indices.tensor}, {{dense_shape, tensor.dtype()}}, {}, values.where});
}

}  // namespace tutti
