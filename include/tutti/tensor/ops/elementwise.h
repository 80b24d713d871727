// Elementwise operations with numpy's broadcasting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"

namespace tutti {

/// Return a + b, a - b and a * b. All functions in this file require inputs with the same dtype (a
/// plain number takes the other operand's dtype) on one device. A wrong shape or dtype throws
/// kInvalidArgument, naming the operation, both shapes and the caller's line. CPU kernels run on
/// the calling thread.
Tensor add(const Operand& a, const Operand& b);
Tensor subtract(const Operand& a, const Operand& b);
Tensor multiply(const Operand& a, const Operand& b);
/// Returns a / b. Throws kInvalidArgument for integers: use cast() or floor_divide().
Tensor divide(const Operand& a, const Operand& b);
/// Return the larger or the smaller of each pair of elements.
Tensor maximum(const Operand& a, const Operand& b);
Tensor minimum(const Operand& a, const Operand& b);
/// Returns base to the power of exponent. For integers, a negative exponent gives 1 /
/// base^-exponent, truncated.
Tensor pow(const Operand& base, const Operand& exponent);
/// Return the quotient rounded towards minus infinity, and the remainder, which has the sign of b.
/// Both are 0 if an integer is divided by 0, as in numpy. Correspond to tf.math.floordiv and
/// tf.math.floormod.
Tensor floor_divide(const Operand& a, const Operand& b);
Tensor floor_mod(const Operand& a, const Operand& b);
/// Returns relu(a + b), the end of a residual block, computed in one pass. Bit-identical to running
/// the two operations one after the other. Broadcasts like add().
Tensor add_relu(const Operand& a, const Operand& b);

inline Tensor operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline Tensor operator-(const Operand& a, const Operand& b) { return subtract(a, b); }
inline Tensor operator*(const Operand& a, const Operand& b) { return multiply(a, b); }
inline Tensor operator/(const Operand& a, const Operand& b) { return divide(a, b); }
inline Tensor operator%(const Operand& a, const Operand& b) { return floor_mod(a, b); }

/// Compare elements of equal types, or combine bool tensors. All return bool tensors.
Tensor equal(const Operand& a, const Operand& b);
Tensor not_equal(const Operand& a, const Operand& b);
Tensor less(const Operand& a, const Operand& b);
Tensor less_equal(const Operand& a, const Operand& b);
Tensor greater(const Operand& a, const Operand& b);
Tensor greater_equal(const Operand& a, const Operand& b);
Tensor logical_and(const Operand& a, const Operand& b);
Tensor logical_or(const Operand& a, const Operand& b);
Tensor logical_not(const Operand& x);
/// Return bool tensors that are true where x is NaN, infinite or finite. Integers are finite.
/// Correspond to tf.math.is_nan, is_inf and is_finite.
Tensor isnan(const Operand& x);
Tensor isinf(const Operand& x);
Tensor isfinite(const Operand& x);

inline Tensor operator==(const Operand& a, const Operand& b) { return equal(a, b); }
inline Tensor operator!=(const Operand& a, const Operand& b) { return not_equal(a, b); }
inline Tensor operator<(const Operand& a, const Operand& b) { return less(a, b); }
inline Tensor operator<=(const Operand& a, const Operand& b) { return less_equal(a, b); }
inline Tensor operator>(const Operand& a, const Operand& b) { return greater(a, b); }
inline Tensor operator>=(const Operand& a, const Operand& b) { return greater_equal(a, b); }

/// Replace `a` with the result; copies of the old tensor keep its value.
inline Tensor& operator+=(Tensor& a, const Operand& b) { return a = add(a, b); }
inline Tensor& operator-=(Tensor& a, const Operand& b) { return a = subtract(a, b); }
inline Tensor& operator*=(Tensor& a, const Operand& b) { return a = multiply(a, b); }
inline Tensor& operator/=(Tensor& a, const Operand& b) { return a = divide(a, b); }

/// Inverts every bit of an integer, which gives -1 - x, or 255 - x for uint8. For bool, same as
/// logical_not(). Corresponds to numpy.invert. Throws kInvalidArgument for floating-point types.
Tensor bitwise_not(const Operand& x);
inline Tensor operator~(const Operand& x) { return bitwise_not(x); }

/// Return -x, x * x, |x|, and the sign of x as -1, 0 or 1.
Tensor negate(const Operand& x);
inline Tensor operator-(const Operand& x) { return negate(x); }
Tensor square(const Operand& x);
Tensor abs(const Operand& x);
Tensor sign(const Operand& x);
/// Return e^x or the natural logarithm of x.
Tensor exp(const Operand& x);
Tensor log(const Operand& x);
/// Return the square root, 1 / sqrt(x) and 1 / x.
Tensor sqrt(const Operand& x);
Tensor rsqrt(const Operand& x);
Tensor reciprocal(const Operand& x);
/// Return the largest integer <= x or the smallest integer >= x.
Tensor floor(const Operand& x);
Tensor ceil(const Operand& x);
/// Rounds to the nearest integer; ties are rounded to the even integer. Corresponds to tf.round.
Tensor round(const Operand& x);
/// Returns the error function of x.
Tensor erf(const Operand& x);
/// Return log(1 + x) and exp(x) - 1, accurate near 0.
Tensor log1p(const Operand& x);
Tensor expm1(const Operand& x);
/// Return sine and cosine; x is in radians.
Tensor sin(const Operand& x);
Tensor cos(const Operand& x);

/// Return max(x, 0); 1 / (1 + e^-x); the hyperbolic tangent; log(1 + e^x); and x where x is
/// positive, else e^x - 1.
Tensor relu(const Operand& x);
Tensor sigmoid(const Operand& x);
Tensor tanh(const Operand& x);
Tensor softplus(const Operand& x);
Tensor elu(const Operand& x);
/// Return the exact GELU, x * Phi(x), and its approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x +
/// 0.044715 x^3))), which is Keras's gelu(x, approximate=True).
Tensor gelu(const Operand& x);
Tensor gelu_tanh(const Operand& x);

/// Limits x to [low, high]. The gradient is 0 where x is outside this range.
Tensor clip(const Operand& x, double low, double high);
/// Converts x to another type. Conversions from floating-point to integer types truncate towards
/// zero; conversions to bool compute x != 0.
Tensor cast(const Operand& x, DType dtype);
/// Returns the elements of `a` where `condition` (bool) is true, else those of `b`; all three
/// broadcast.
Tensor where(const Operand& condition, const Operand& a, const Operand& b);
/// Returns x as a value that tapes treat as a constant.
Tensor stop_gradient(const Operand& x);

/// Return dy times the derivative of the activation, given its result y. dy and y have the same
/// shape and floating-point type.
Tensor relu_grad(const Operand& dy, const Operand& y);
Tensor sigmoid_grad(const Operand& dy, const Operand& y);
Tensor tanh_grad(const Operand& dy, const Operand& y);
Tensor elu_grad(const Operand& dy, const Operand& y);
/// Return dy times the derivative of the activation, given its input x.
Tensor gelu_grad(const Operand& dy, const Operand& x);
Tensor gelu_tanh_grad(const Operand& dy, const Operand& x);

}  // namespace tutti
