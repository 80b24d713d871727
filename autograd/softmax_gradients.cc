// Gradients of softmax and of the cross-entropies.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a row is a vector along the last axis; s = softmax(logits). Functions named
// xxx_grad_gradient get in dy() the gradient g with respect to the result of xxx_grad.
#include "tutti/autograd/gradients.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {
namespace {

/// Sums over rows, as a column.
Tensor row_sum(const Tensor& x) { return reduce_sum(x, {.axes = {-1}, .keep_dims = true}); }

/// [batch] -> [batch, 1].
Tensor as_column(const Tensor& x) { return reshape(x, Shape{x.num_elements(), 1}); }

}  // namespace

Gradients softmax_gradient(const GradientContext& c) {
  return single(softmax_grad(c.out(), c.dy()));
}

Gradients log_softmax_gradient(const GradientContext& c) {
  return single(log_softmax_grad(c.out(), c.dy()));
}

/// softmax_grad(y, dy) = (dy - sum(dy y)) y.
Gradients softmax_grad_gradient(const GradientContext& c) {
  const Tensor& y = c.in(0);
  const Tensor& dy = c.in(1);
  const Tensor& g = c.dy();
  Gradients result(2);
  if (c.needs(0)) result[0] = g * (dy - row_sum(dy * y)) - dy * row_sum(g * y);
  if (c.needs(1)) result[1] = softmax_grad(y, g);  // the Jacobian of softmax is symmetric
  return result;
}

/// log_softmax_grad(y, dy) = dy - exp(y) sum(dy).
Gradients log_softmax_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor weighted = g * exp(c.in(0));
  Gradients result(2);
  if (c.needs(0)) result[0] = -(weighted * row_sum(c.in(1)));
  if (c.needs(1)) result[1] = g - row_sum(weighted);
  return result;
}

/// Inputs (labels, logits). As in tf, the gradient takes each row of labels for a distribution.
Gradients softmax_cross_entropy_gradient(const GradientContext& c) {
  const Tensor dy = as_column(c.dy());
  Gradients result(2);
  if (c.needs(0)) result[0] = -(log_softmax(c.in(1)) * dy);
  if (c.needs(1)) result[1] = (softmax(c.in(1)) - c.in(0)) * dy;
  return result;
}

Gradients sparse_softmax_cross_entropy_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(1)) result[1] = sparse_softmax_cross_entropy_grad(c.in(0), c.in(1), c.dy());
  return result;
}

/// Inputs (labels, logits, dy): (s - one_hot(labels)) dy[row].
Gradients sparse_softmax_cross_entropy_grad_gradient(const GradientContext& c) {
  const Tensor& logits = c.in(1);
  const Tensor& dy = c.in(2);
  const Tensor& g = c.dy();
  Gradients result(3);
  if (c.needs(1)) result[1] = softmax_grad(softmax(logits), g * as_column(dy));
  if (c.needs(2)) {
    const Tensor ones = Tensor::ones(dy.shape(), dy.dtype(), dy.device());
    const Tensor difference = sparse_softmax_cross_entropy_grad(c.in(0), logits, ones);
    result[2] = reduce_sum(g * difference, {.axes = {1}});
  }
  return result;
}

/// Inputs (labels, logits).
Gradients sigmoid_cross_entropy_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = -(c.in(1) * c.dy());
  if (c.needs(1)) result[1] = (sigmoid(c.in(1)) - c.in(0)) * c.dy();
  return result;
}

}  // namespace tutti::internal
