// Gradients of matrix products.
// SPDX-License-Identifier: Apache-2.0
//
// y = activation(A B + bias), where A and B are a and b, transposed or not; dz is the gradient
// before the activation.
#include "tutti/autograd/gradients.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {
namespace {

/// [..., m, n] as one matrix [all rows, n].
Tensor as_rows(const Tensor& x) {
  const std::int64_t columns = x.shape().dim(-1);
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < x.rank(); ++axis) rows *= x.shape().dim(axis);
  return reshape(x, Shape{rows, columns});
}

Tensor gradient_of_a(const Tensor& dz, const Tensor& b, const MatMulAttributes& attributes) {
  if (!attributes.transpose_a) {
    return matmul(dz, b, {.transpose_b = !attributes.transpose_b});
  }
  return matmul(b, dz, {.transpose_a = attributes.transpose_b, .transpose_b = true});
}

Tensor gradient_of_b(const Tensor& dz, const Tensor& a, const MatMulAttributes& attributes,
                     int rank_of_b) {
  const bool batch_only_in_a = a.rank() > 2 && rank_of_b == 2;
  // Summing over the batch inside one product is faster than adding up one product per batch
  // element.
  const bool join = batch_only_in_a && !attributes.transpose_a;
  const Tensor left = join ? as_rows(a) : a;
  const Tensor right = join ? as_rows(dz) : dz;
  if (!attributes.transpose_b) {
    return matmul(left, right, {.transpose_a = !attributes.transpose_a});
  }
  return matmul(right, left, {.transpose_a = true, .transpose_b = attributes.transpose_a});
}

}  // namespace

Gradients matmul_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<MatMulAttributes>();
  const bool fused = attributes.activation != FusedActivation::kNone;
  const Tensor dz = activation_gradient(attributes.activation, c.dy(), fused ? &c.out() : nullptr);
  Gradients result(c.num_inputs());
  if (c.needs(0)) result[0] = unbroadcast(c, 0, gradient_of_a(dz, c.in(1), attributes));
  if (c.needs(1)) {
    result[1] = unbroadcast(c, 1, gradient_of_b(dz, c.in(0), attributes, c.shape(1).rank()));
  }
  if (c.num_inputs() > 2 && c.needs(2)) result[2] = bias_grad(dz);
  return result;
}

}  // namespace tutti::internal
