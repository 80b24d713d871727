// Gradients of arithmetic, element by element.
// SPDX-License-Identifier: Apache-2.0
#include <numbers>

#include "tutti/autograd/gradients.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {
namespace {

/// dy goes to the first input where `first_wins`, else to the second.
Gradients choice_gradient(const GradientContext& c, const Tensor& first_wins) {
  Gradients result(2);
  if (c.needs(0)) result[0] = unbroadcast(c, 0, where(first_wins, c.dy(), 0.0));
  if (c.needs(1)) result[1] = unbroadcast(c, 1, where(first_wins, 0.0, c.dy()));
  return result;
}

}  // namespace

Tensor unbroadcast(const GradientContext& c, std::size_t i, const Tensor& gradient) {
  return gradient.shape() == c.shape(i) ? gradient : sum_to_shape(gradient, c.shape(i));
}

Gradients negate_gradient(const GradientContext& c) { return single(-c.dy()); }
Gradients exp_gradient(const GradientContext& c) { return single(c.dy() * c.out()); }
Gradients log_gradient(const GradientContext& c) { return single(c.dy() / c.in(0)); }
Gradients sqrt_gradient(const GradientContext& c) { return single(c.dy() * 0.5 / c.out()); }
Gradients rsqrt_gradient(const GradientContext& c) {
  return single(c.dy() * -0.5 * (square(c.out()) * c.out()));
}
Gradients square_gradient(const GradientContext& c) { return single(c.dy() * 2.0 * c.in(0)); }
Gradients abs_gradient(const GradientContext& c) { return single(c.dy() * sign(c.in(0))); }
Gradients reciprocal_gradient(const GradientContext& c) {
  return single(-(c.dy() * square(c.out())));
}
Gradients cast_gradient(const GradientContext& c) { return single(cast(c.dy(), c.dtype(0))); }

Gradients erf_gradient(const GradientContext& c) {
  return single(c.dy() * (exp(-square(c.in(0))) * (2.0 * std::numbers::inv_sqrtpi)));
}
Gradients log1p_gradient(const GradientContext& c) { return single(c.dy() / (c.in(0) + 1.0)); }
Gradients expm1_gradient(const GradientContext& c) { return single(c.dy() * (c.out() + 1.0)); }
Gradients sin_gradient(const GradientContext& c) { return single(c.dy() * cos(c.in(0))); }
Gradients cos_gradient(const GradientContext& c) { return single(-(c.dy() * sin(c.in(0)))); }

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
    // As in tf: where the base is not positive, the logarithm counts as 0.
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

}  // namespace tutti::internal
