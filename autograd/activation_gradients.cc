// Gradients of activations, and the gradients of those gradients.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "tutti/autograd/gradients.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

Tensor activation_gradient(FusedActivation activation, const Tensor& dy, const Tensor* y) {
  switch (activation) {
    case FusedActivation::kNone:
      return dy;
    case FusedActivation::kRelu:
      return relu_grad(dy, *y);
    case FusedActivation::kSigmoid:
      return sigmoid_grad(dy, *y);
    case FusedActivation::kTanh:
      return tanh_grad(dy, *y);
  }
  fail(ErrorCode::kInternal, "FusedActivation: no such value: ", static_cast<int>(activation));
}

Gradients relu_gradient(const GradientContext& c) { return single(relu_grad(c.dy(), c.out())); }
Gradients add_relu_gradient(const GradientContext& c) {
  const Tensor both = relu_grad(c.dy(), c.out());
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, both);
  if (c.needs(1)) result[1] = unbroadcast(c, 1, both);
  return result;
}
Gradients sigmoid_gradient(const GradientContext& c) {
  return single(sigmoid_grad(c.dy(), c.out()));
}
Gradients tanh_gradient(const GradientContext& c) { return single(tanh_grad(c.dy(), c.out())); }
Gradients softplus_gradient(const GradientContext& c) { return single(c.dy() * sigmoid(c.in(0))); }
Gradients elu_gradient(const GradientContext& c) { return single(elu_grad(c.dy(), c.out())); }
Gradients gelu_gradient(const GradientContext& c) { return single(gelu_grad(c.dy(), c.in(0))); }

// Below, g is the gradient with respect to the result of xxx_grad(dy, y).

Gradients relu_grad_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = relu_grad(c.dy(), c.in(1));
  return result;  // piecewise constant in y
}

Gradients sigmoid_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor& y = c.in(1);
  Gradients result(2);
  if (c.needs(0)) result[0] = sigmoid_grad(g, y);
  if (c.needs(1)) result[1] = g * c.in(0) * (1.0 - 2.0 * y);
  return result;
}

Gradients tanh_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor& y = c.in(1);
  Gradients result(2);
  if (c.needs(0)) result[0] = tanh_grad(g, y);
  if (c.needs(1)) result[1] = g * c.in(0) * y * -2.0;
  return result;
}

Gradients elu_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor& y = c.in(1);
  Gradients result(2);
  if (c.needs(0)) result[0] = elu_grad(g, y);
  if (c.needs(1)) result[1] = where(greater(y, 0.0), 0.0, g * c.in(0));
  return result;
}

Gradients gelu_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor& x = c.in(1);
  Gradients result(2);
  if (c.needs(0)) result[0] = gelu_grad(g, x);
  if (c.needs(1)) {
    // gelu'' = phi(x) (2 - x^2), phi the density of the normal distribution
    const double scale = 1.0 / std::sqrt(2.0 * std::numbers::pi);
    const Tensor square_x = square(x);
    const Tensor density = exp(square_x * -0.5) * scale;
    result[1] = g * c.in(0) * (density * (2.0 - square_x));
  }
  return result;
}

}  // namespace tutti::internal
