// Gradients of elementwise arithmetic and activations.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "autograd/gradients.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

Tensor unbroadcast(const GradientContext& c, std::size_t i, const Tensor& gradient) {
  return gradient.shape() == c.shape(i) ? gradient : sum_to_shape(gradient, c.shape(i));
}

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

namespace {

/// Passes dy to the first input where `first_wins` is true, and to the second elsewhere.
Gradients choice_gradient(const GradientContext& c, const Tensor& first_wins) {
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, where(first_wins, c.dy(), 0.0));
  if (c.needs(1)) result[1] = unbroadcast(c, 1, where(first_wins, 0.0, c.dy()));
  return result;
}

Gradients clip_gradient(const GradientContext& c) {
  const auto& [low, high] = c.attributes_as<ClipAttributes>();
  const Tensor inside = logical_and(greater_equal(c.in(0), low), less_equal(c.in(0), high));
  return single(where(inside, c.dy(), 0.0));
}

Gradients dropout_gradient(const GradientContext& c) {
  const auto& attributes = c.attributes_as<DropoutAttributes>();
  return single(dropout(c.dy(), attributes.rate, attributes.key));
}

Gradients add_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, c.dy());
  if (c.needs(1)) result[1] = unbroadcast(c, 1, c.dy());
  return result;
}

Gradients subtract_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, c.dy());
  if (c.needs(1)) result[1] = -unbroadcast(c, 1, c.dy());
  return result;
}

Gradients multiply_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, c.dy() * c.in(1));
  if (c.needs(1)) result[1] = unbroadcast(c, 1, c.dy() * c.in(0));
  return result;
}

Gradients divide_gradient(const GradientContext& c) {
  const Tensor quotient = c.dy() / c.in(1);
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, quotient);
  if (c.needs(1)) result[1] = -unbroadcast(c, 1, quotient * (c.in(0) / c.in(1)));
  return result;
}

/// Differentiates a - floor_divide(a, b) * b, in which floor_divide() is piecewise constant.
Gradients floor_mod_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, c.dy());
  if (c.needs(1)) result[1] = -unbroadcast(c, 1, c.dy() * floor_divide(c.in(0), c.in(1)));
  return result;
}

Gradients maximum_gradient(const GradientContext& c) {
  return choice_gradient(c, greater_equal(c.in(0), c.in(1)));
}

Gradients minimum_gradient(const GradientContext& c) {
  return choice_gradient(c, less_equal(c.in(0), c.in(1)));
}

Gradients power_gradient(const GradientContext& c) {
  const Tensor& base = c.in(0);
  const Tensor& exponent = c.in(1);
  Gradients result(2);
  if (c.needs(0)) {
    result[0] = unbroadcast(c, 0, c.dy() * (exponent * pow(base, exponent - 1.0)));
  }
  if (c.needs(1)) {
    // As in tf, the logarithm counts as 0 if the base is not positive.
    const Tensor positive = greater(base, 0.0);
    const Tensor logarithm = where(positive, log(where(positive, base, 1.0)), 0.0);
    result[1] = unbroadcast(c, 1, c.dy() * (c.out() * logarithm));
  }
  return result;
}

Gradients where_gradient(const GradientContext& c) {
  const Tensor& condition = c.in(0);
  Gradients result(3);
  if (c.needs(1)) result[1] = unbroadcast(c, 1, where(condition, c.dy(), 0.0));
  if (c.needs(2)) result[2] = unbroadcast(c, 2, where(condition, 0.0, c.dy()));
  return result;
}

Gradients add_relu_gradient(const GradientContext& c) {
  const Tensor both = relu_grad(c.dy(), c.out());
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, both);
  if (c.needs(1)) result[1] = unbroadcast(c, 1, both);
  return result;
}

// Below, g is the gradient of the result of relu_grad(), sigmoid_grad() and so on.

Gradients relu_grad_gradient(const GradientContext& c) {
  Gradients result(2);
  if (c.needs(0)) result[0] = relu_grad(c.dy(), c.in(1));
  return result;  // none for y: the result is piecewise constant in it
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
    // gelu'' = phi(x) (2 - x^2), where phi is the density of the normal distribution
    const double scale = 1.0 / std::sqrt(2.0 * std::numbers::pi);
    const Tensor square_x = square(x);
    const Tensor density = exp(square_x * -0.5) * scale;
    result[1] = g * c.in(0) * (density * (2.0 - square_x));
  }
  return result;
}

Gradients gelu_tanh_grad_gradient(const GradientContext& c) {
  const Tensor& g = c.dy();
  const Tensor& x = c.in(1);
  Gradients result(2);
  if (c.needs(0)) result[0] = gelu_tanh_grad(g, x);
  if (c.needs(1)) {
    // With t = tanh(u), u = scale (x + cubic x^3): gelu'' = (1 - t^2) (u' + (x / 2) (u'' - 2 t
    // u'^2)).
    const double scale = std::sqrt(2.0 / std::numbers::pi), cubic = 0.044715;
    const Tensor square_x = square(x);
    const Tensor t = tanh((x + cubic * (square_x * x)) * scale);
    const Tensor slope = (1.0 + 3.0 * cubic * square_x) * scale;
    const Tensor bend = x * (6.0 * cubic * scale) - 2.0 * t * square(slope);
    result[1] = g * c.in(0) * ((1.0 - square(t)) * (slope + 0.5 * x * bend));
  }
  return result;
}

using C = const GradientContext&;  // alias for the table below

constexpr OpGradient kElementwiseGradients[] = {
    {OpId::kNegate, [](C c) { return single(-c.dy()); }, kNoTensor},
    {OpId::kExp, [](C c) { return single(c.dy() * c.out()); }, kNoTensor, kFirstTensor},
    {OpId::kLog, [](C c) { return single(c.dy() / c.in(0)); }, kEveryTensor},
    {OpId::kSqrt, [](C c) { return single(c.dy() * 0.5 / c.out()); }, kNoTensor, kFirstTensor},
    {OpId::kRsqrt, [](C c) { return single(c.dy() * -0.5 * (square(c.out()) * c.out())); },
     kNoTensor, kFirstTensor},
    {OpId::kSquare, [](C c) { return single(c.dy() * 2.0 * c.in(0)); }, kEveryTensor},
    {OpId::kAbs, [](C c) { return single(c.dy() * sign(c.in(0))); }, kEveryTensor},
    {OpId::kReciprocal, [](C c) { return single(-(c.dy() * square(c.out()))); }, kNoTensor,
     kFirstTensor},
    {OpId::kErf,
     [](C c) {
       return single(c.dy() * (exp(-square(c.in(0))) * (2.0 * std::numbers::inv_sqrtpi)));
     },
     kEveryTensor},
    {OpId::kLog1p, [](C c) { return single(c.dy() / (c.in(0) + 1.0)); }, kEveryTensor},
    {OpId::kExpm1, [](C c) { return single(c.dy() * (c.out() + 1.0)); }, kNoTensor, kFirstTensor},
    {OpId::kSin, [](C c) { return single(c.dy() * cos(c.in(0))); }, kEveryTensor},
    {OpId::kCos, [](C c) { return single(-(c.dy() * sin(c.in(0)))); }, kEveryTensor},
    {OpId::kCast, [](C c) { return single(cast(c.dy(), c.dtype(0))); }, kNoTensor},
    {OpId::kClip, clip_gradient, kEveryTensor},
    {OpId::kAdd, add_gradient, kNoTensor},
    {OpId::kSubtract, subtract_gradient, kNoTensor},
    {OpId::kMultiply, multiply_gradient, kEveryTensor},
    {OpId::kDivide, divide_gradient, kEveryTensor},
    {OpId::kMaximum, maximum_gradient, kEveryTensor},
    {OpId::kMinimum, minimum_gradient, kEveryTensor},
    {OpId::kPower, power_gradient, kEveryTensor, kFirstTensor},
    {OpId::kFloorMod, floor_mod_gradient, kEveryTensor},
    {OpId::kWhere, where_gradient, kFirstTensor},
    {OpId::kDropout, dropout_gradient, kNoTensor},
    {OpId::kRelu, [](C c) { return single(relu_grad(c.dy(), c.out())); }, kNoTensor, kFirstTensor},
    {OpId::kAddRelu, add_relu_gradient, kNoTensor, kFirstTensor},
    {OpId::kSigmoid, [](C c) { return single(sigmoid_grad(c.dy(), c.out())); }, kNoTensor,
     kFirstTensor},
    {OpId::kTanh, [](C c) { return single(tanh_grad(c.dy(), c.out())); }, kNoTensor, kFirstTensor},
    {OpId::kSoftplus, [](C c) { return single(c.dy() * sigmoid(c.in(0))); }, kEveryTensor},
    {OpId::kElu, [](C c) { return single(elu_grad(c.dy(), c.out())); }, kNoTensor, kFirstTensor},
    {OpId::kGelu, [](C c) { return single(gelu_grad(c.dy(), c.in(0))); }, kEveryTensor},
    {OpId::kGeluTanh, [](C c) { return single(gelu_tanh_grad(c.dy(), c.in(0))); }, kEveryTensor},
    {OpId::kReluGrad, relu_grad_gradient, kSecondTensor},
    {OpId::kSigmoidGrad, sigmoid_grad_gradient, kEveryTensor},
    {OpId::kTanhGrad, tanh_grad_gradient, kEveryTensor},
    {OpId::kEluGrad, elu_grad_gradient, kEveryTensor},
    {OpId::kGeluGrad, gelu_grad_gradient, kEveryTensor},
    {OpId::kGeluTanhGrad, gelu_tanh_grad_gradient, kEveryTensor},
};

}  // namespace

std::span<const OpGradient> elementwise_gradients() { return kElementwiseGradients; }

}  // namespace tutti::internal
