// Formulas of elementwise operations, shared by all kernels, so that their results are
// bit-identical.
// SPDX-License-Identifier: Apache-2.0
//
// The formulas are constexpr because GPU kernels (tensor/cuda/) call them, and templates because
// XLA programs are built by calling them with Hlo (tensor/xla/hlo.h), which has the same operators
// and functions. The formulas call choose() to select between two values, because Hlo cannot
// overload ?:.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <numbers>
#include <type_traits>

#include "tensor/cpu/float_functions.h"
#include "tutti/tensor/half.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

// Formulas call these functions unqualified, because Hlo has its own functions of the same names.
using std::abs, std::ceil, std::cos, std::erf, std::exp, std::expm1, std::floor, std::fmod,
    std::log, std::log1p, std::nearbyint, std::pow, std::sin, std::sqrt;

template <class T>
constexpr T choose(bool condition, T a, T b) {
  return condition ? a : b;
}
/// Returns `a` if `condition` is true; otherwise calls b() and returns its result.
template <class T, std::invocable B>
constexpr T choose(bool condition, T a, const B& b) {
  return condition ? a : b();
}

/// Return the larger or the smaller of two numbers; NaN if either is NaN.
template <class T>
constexpr T larger(T a, T b) {
  return ((b > a) | (b != b)) ? b : a;
}
template <class T>
constexpr T smaller(T a, T b) {
  return ((b < a) | (b != b)) ? b : a;
}

/// Type of the constants in a formula: T, or double where T is Hlo.
template <class T>
using Coefficient = std::conditional_t<std::is_floating_point_v<T>, T, double>;

/// Applies `function`. Integers wrap around, as in numpy and tf, without the undefined behaviour of
/// signed overflow.
template <class T, class Function>
constexpr T wrapping(T a, T b, Function function) {
  if constexpr (!std::is_integral_v<T>) {
    return function(a, b);
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(function(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  }
}

// Operations with two inputs.
struct Add {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Subtract {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Multiply {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Divide {
  constexpr auto operator()(auto a, auto b) const { return a / b; }
};
struct Maximum {
  constexpr auto operator()(auto a, auto b) const { return larger(a, b); }
};
struct Minimum {
  constexpr auto operator()(auto a, auto b) const { return smaller(a, b); }
};
/// Rounds towards minus infinity, as in numpy and tf. Integers divided by 0 give 0, as in numpy.
struct FloorDivide {
  template <class T>
  constexpr T operator()(T a, T b) const {
    if constexpr (!std::is_integral_v<T>) {
      return floor(a / b);
    } else if (b == T{0}) {
      return T{0};
    } else if constexpr (std::is_signed_v<T>) {
      if (b == T{-1}) return Subtract{}(T{0}, a);  // -a; wraps around for the lowest a
      const T quotient = static_cast<T>(a / b);
      return static_cast<T>(quotient - T{a % b != 0 && (a < 0) != (b < 0)});
    } else {
      return static_cast<T>(a / b);
    }
  }
};
/// Remainder of FloorDivide, with the sign of b. For integers it is 0 if b is 0, as in numpy.
struct FloorMod {
  template <class T>
  constexpr T operator()(T a, T b) const {
    T rest{0};
    if constexpr (!std::is_integral_v<T>) {
      rest = fmod(a, b);
    } else if (b != T{0} && b != static_cast<T>(-1)) {
      rest = static_cast<T>(a % b);
    } else if constexpr (std::is_unsigned_v<T>) {
      if (b != T{0}) rest = static_cast<T>(a % b);
    }
    return choose((rest != T{0}) & ((rest < T{0}) != (b < T{0})), Add{}(rest, b), rest);
  }
};
/// For integers, a negative exponent gives 1 / a^-b, truncated, which is 0 unless a is 1 or -1.
struct Power {
  template <class T>
  constexpr T operator()(T a, T b) const {
    if constexpr (!std::is_integral_v<T>) {
      return pow(a, b);
    } else {
      if (b < T{0}) {
        if (a != T{1} && a != static_cast<T>(-1)) return T{0};
        return b % T{2} == T{0} ? T{1} : a;
      }
      T power{1};
      for (T left = b; left > T{0}; left = static_cast<T>(left / T{2})) {
        if (left % T{2} == T{1}) power = Multiply{}(power, a);
        a = Multiply{}(a, a);
      }
      return power;
    }
  }
};
struct Equal {
  constexpr auto operator()(auto a, auto b) const { return a == b; }
};
struct NotEqual {
  constexpr auto operator()(auto a, auto b) const { return a != b; }
};
struct Less {
  constexpr auto operator()(auto a, auto b) const { return a < b; }
};
struct LessEqual {
  constexpr auto operator()(auto a, auto b) const { return a <= b; }
};
struct Greater {
  constexpr auto operator()(auto a, auto b) const { return a > b; }
};
struct GreaterEqual {
  constexpr auto operator()(auto a, auto b) const { return a >= b; }
};
struct LogicalAnd {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return a & b;
  }
};
struct LogicalOr {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return a | b;
  }
};

// Operations with one input.
struct Negate {
  template <class T>
  constexpr T operator()(T x) const {
    if constexpr (std::is_integral_v<T>)
      return Subtract{}(T{0}, x);
    else
      return -x;
  }
};
struct Exp {
  constexpr auto operator()(auto x) const { return exp_of(x); }
};
struct Log {
  constexpr auto operator()(auto x) const { return log(x); }
};
struct Sqrt {
  constexpr auto operator()(auto x) const { return sqrt(x); }
};
struct Rsqrt {
  template <class T>
  constexpr T operator()(T x) const {
    return T{1} / sqrt(x);
  }
};
struct Square {
  constexpr auto operator()(auto x) const { return Multiply{}(x, x); }
};
struct Abs {
  template <class T>
  constexpr T operator()(T x) const {
    if constexpr (!std::is_integral_v<T>)
      return abs(x);
    else if constexpr (std::is_unsigned_v<T>)
      return x;
    else
      return x < T{0} ? Negate{}(x) : x;
  }
};
/// NaN stays NaN, and -0 becomes 0.
struct Sign {
  template <class T>
  constexpr T operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>)
      return x > T{0} ? T{1} : T{0};
    else
      return choose(x > T{0}, T{1}, choose(x < T{0}, T{-1}, Add{}(x, T{0})));
  }
};
struct Reciprocal {
  template <class T>
  constexpr T operator()(T x) const {
    return T{1} / x;
  }
};
struct Floor {
  constexpr auto operator()(auto x) const { return floor(x); }
};
struct Ceil {
  constexpr auto operator()(auto x) const { return ceil(x); }
};
/// Rounds halves to even, which is the default rounding mode.
struct Round {
  constexpr auto operator()(auto x) const { return nearbyint(x); }
};
struct Erf {
  constexpr auto operator()(auto x) const { return erf(x); }
};
struct Log1p {
  constexpr auto operator()(auto x) const { return log1p(x); }
};
struct Expm1 {
  constexpr auto operator()(auto x) const { return expm1(x); }
};
struct Sin {
  constexpr auto operator()(auto x) const { return sin(x); }
};
struct Cos {
  constexpr auto operator()(auto x) const { return cos(x); }
};
struct LogicalNot {
  constexpr auto operator()(auto x) const { return !x; }
};
struct Relu {
  template <class T>
  constexpr T operator()(T x) const {
    return choose(x <= T{0}, T{0}, x);
  }  // NaN stays NaN
};
/// Takes two inputs. A 16-bit sum need not be rounded before the ReLU, because rounding preserves
/// its sign.
struct AddRelu {
  constexpr auto operator()(auto a, auto b) const { return Relu{}(Add{}(a, b)); }
};
struct Sigmoid {
  template <class T>
  constexpr T operator()(T x) const {
    return T{1} / (T{1} + exp_of(-x));
  }
};
struct Tanh {
  constexpr auto operator()(auto x) const { return tanh_of(x); }
};
struct Softplus {
  template <class T>
  constexpr T operator()(T x) const {
    return larger(x, T{0}) + log1p(exp(-abs(x)));
  }
};
struct Elu {
  template <class T>
  constexpr T operator()(T x) const {
    return choose(x > T{0}, x, [x] { return expm1(x); });
  }
};
struct Gelu {
  template <class T>
  constexpr T operator()(T x) const {
    return T(0.5) * x * (T{1} + erf(x * (std::numbers::sqrt2_v<Coefficient<T>> / 2)));
  }
};
/// Terms of GELU's approximation, which has tanh(scale * (x + cubic * x^3)) instead of erf.
template <class T>
struct GeluTanhTerms {
  using Number = Coefficient<T>;
  static constexpr Number kScale =
      std::numbers::sqrt2_v<Number> * std::numbers::inv_sqrtpi_v<Number>;
  static constexpr Number kCubic = Number(0.044715);
  static constexpr T tangent(T x) { return tanh_of(kScale * (x + kCubic * (x * x * x))); }
};
struct GeluTanh {
  template <class T>
  constexpr T operator()(T x) const {
    return T(0.5) * x * (T{1} + GeluTanhTerms<T>::tangent(x));
  }
};

// Gradients, computed from dy and the result y; those of Gelu and GeluTanh, from dy and the input
// x.
struct ReluGrad {
  template <class T>
  constexpr T operator()(T dy, T y) const {
    return choose(y > T{0}, dy, T{0});
  }
};
struct SigmoidGrad {
  template <class T>
  constexpr T operator()(T dy, T y) const {
    return dy * (y * (T{1} - y));
  }
};
struct TanhGrad {
  template <class T>
  constexpr T operator()(T dy, T y) const {
    return dy * (T{1} - y * y);
  }
};
struct EluGrad {
  template <class T>
  constexpr T operator()(T dy, T y) const {
    return choose(y > T{0}, dy, dy * (y + T{1}));
  }
};
struct GeluGrad {
  template <class T>
  constexpr T operator()(T dy, T x) const {
    using std::numbers::sqrt2_v, std::numbers::inv_sqrtpi_v;
    using Number = Coefficient<T>;
    const T cumulative = T(0.5) * (T{1} + erf(x * (sqrt2_v<Number> / 2)));
    const T density = exp(T(-0.5) * x * x) * (inv_sqrtpi_v<Number> * sqrt2_v<Number> / 2);
    return dy * (cumulative + x * density);
  }
};
struct GeluTanhGrad {
  template <class T>
  constexpr T operator()(T dy, T x) const {
    using Terms = GeluTanhTerms<T>;
    const T tangent = Terms::tangent(x);
    const T slope = Terms::kScale * (T{1} + 3 * Terms::kCubic * (x * x));
    return dy * (T(0.5) * (T{1} + tangent) + T(0.5) * x * (T{1} - tangent * tangent) * slope);
  }
};

/// Computes the loss from labels z and logits x, without overflow for any x.
struct SigmoidCrossEntropy {
  template <class T>
  constexpr T operator()(T z, T x) const {
    return larger(x, T{0}) - x * z + log1p(exp(-abs(x)));
  }
};

// Table of operations: the formula and the element types of each.

template <class... Ts>
struct ElementTypes {};

/// Calls table.unary<Formula>(op, types) or table.binary<Formula>(op, types) for each operation.
/// `floats` and `numbers` are the ElementTypes for which the table has kernels.
template <class Table, class Floats, class Numbers>
void list_elementwise_formulas(Table&& table, Floats floats, Numbers numbers) {
  constexpr ElementTypes<bool> bools;
  table.template unary<Negate>(OpId::kNegate, numbers);
  table.template unary<Square>(OpId::kSquare, numbers);
  table.template unary<Abs>(OpId::kAbs, numbers);
  table.template unary<Sign>(OpId::kSign, numbers);
  table.template unary<Relu>(OpId::kRelu, numbers);
  table.template unary<Exp>(OpId::kExp, floats);
  table.template unary<Log>(OpId::kLog, floats);
  table.template unary<Sqrt>(OpId::kSqrt, floats);
  table.template unary<Rsqrt>(OpId::kRsqrt, floats);
  table.template unary<Reciprocal>(OpId::kReciprocal, floats);
  table.template unary<Floor>(OpId::kFloor, floats);
  table.template unary<Ceil>(OpId::kCeil, floats);
  table.template unary<Round>(OpId::kRound, floats);
  table.template unary<Erf>(OpId::kErf, floats);
  table.template unary<Log1p>(OpId::kLog1p, floats);
  table.template unary<Expm1>(OpId::kExpm1, floats);
  table.template unary<Sin>(OpId::kSin, floats);
  table.template unary<Cos>(OpId::kCos, floats);
  table.template unary<Sigmoid>(OpId::kSigmoid, floats);
  table.template unary<Tanh>(OpId::kTanh, floats);
  table.template unary<Softplus>(OpId::kSoftplus, floats);
  table.template unary<Elu>(OpId::kElu, floats);
  table.template unary<Gelu>(OpId::kGelu, floats);
  table.template unary<GeluTanh>(OpId::kGeluTanh, floats);
  table.template unary<LogicalNot>(OpId::kLogicalNot, bools);

  table.template binary<Add>(OpId::kAdd, numbers);
  table.template binary<Subtract>(OpId::kSubtract, numbers);
  table.template binary<Multiply>(OpId::kMultiply, numbers);
  table.template binary<Maximum>(OpId::kMaximum, numbers);
  table.template binary<Minimum>(OpId::kMinimum, numbers);
  table.template binary<AddRelu>(OpId::kAddRelu, numbers);
  table.template binary<Divide>(OpId::kDivide, floats);
  table.template binary<Power>(OpId::kPower, numbers);
  table.template binary<FloorDivide>(OpId::kFloorDivide, numbers);
  table.template binary<FloorMod>(OpId::kFloorMod, numbers);
  table.template binary<Equal>(OpId::kEqual, numbers);
  table.template binary<NotEqual>(OpId::kNotEqual, numbers);
  table.template binary<Equal>(OpId::kEqual, bools);
  table.template binary<NotEqual>(OpId::kNotEqual, bools);
  table.template binary<Less>(OpId::kLess, numbers);
  table.template binary<LessEqual>(OpId::kLessEqual, numbers);
  table.template binary<Greater>(OpId::kGreater, numbers);
  table.template binary<GreaterEqual>(OpId::kGreaterEqual, numbers);
  table.template binary<LogicalAnd>(OpId::kLogicalAnd, bools);
  table.template binary<LogicalOr>(OpId::kLogicalOr, bools);
  table.template binary<ReluGrad>(OpId::kReluGrad, floats);
  table.template binary<SigmoidGrad>(OpId::kSigmoidGrad, floats);
  table.template binary<TanhGrad>(OpId::kTanhGrad, floats);
  table.template binary<EluGrad>(OpId::kEluGrad, floats);
  table.template binary<GeluGrad>(OpId::kGeluGrad, floats);
  table.template binary<GeluTanhGrad>(OpId::kGeluTanhGrad, floats);
  table.template binary<SigmoidCrossEntropy>(OpId::kSigmoidCrossEntropy, floats);
}

/// Applies the fused activation of matmul or conv2d. NaN stays NaN.
template <class T>
constexpr T activated(FusedActivation activation, T x) {
  switch (activation) {
    case FusedActivation::kNone:
      return x;
    case FusedActivation::kRelu:
      return Relu{}(x);
    case FusedActivation::kSigmoid:
      return Sigmoid{}(x);
    case FusedActivation::kTanh:
      return Tanh{}(x);
  }
  return x;
}

/// Converts `value` to To. Floating-point to integer conversion truncates towards zero; values out
/// of range become the nearest end of the range, and NaN becomes 0 (C++ leaves both undefined). For
/// bool, the result is value != 0.
template <class To, class From>
constexpr To converted(From value) {
  if constexpr (Half<From>) {
    return converted<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The lower end, and the upper end plus one, are exactly representable.
    const From low = static_cast<From>(std::numeric_limits<To>::min());
    const From high = std::ldexp(From{1}, std::numeric_limits<To>::digits);
    if (value != value) return To{0};
    if (value <= low) return std::numeric_limits<To>::min();
    if (value >= high) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace tutti::internal
