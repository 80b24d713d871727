// The formulas of elementwise operations: one place, so that all kernels give the same bits.
// SPDX-License-Identifier: Apache-2.0
//
// constexpr: kernels of GPUs (tensor/cuda/) call them, too.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "tensor/cpu/float_functions.h"
#include "tutti/tensor/half.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

/// Integers wrap around, as in numpy and tf, without the undefined behaviour of signed overflow.
template <class T, class Function>
constexpr T wrapping(T a, T b, Function function) {
  if constexpr (std::is_floating_point_v<T>) {
    return function(a, b);
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(function(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  }
}

// Two inputs. max and min let NaN through.
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
  constexpr auto operator()(auto a, auto b) const { return ((b > a) | (b != b)) ? b : a; }
};
struct Minimum {
  constexpr auto operator()(auto a, auto b) const { return ((b < a) | (b != b)) ? b : a; }
};
/// Towards minus infinity, as in numpy and tf. Integers: by 0 it is 0, as in numpy.
struct FloorDivide {
  template <class T>
  constexpr T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::floor(a / b);
    } else if (b == T{0}) {
      return T{0};
    } else if constexpr (std::is_signed_v<T>) {
      if (b == T{-1}) return Subtract{}(T{0}, a);  // the lowest value wraps around
      const T quotient = static_cast<T>(a / b);
      return static_cast<T>(quotient - T{a % b != 0 && (a < 0) != (b < 0)});
    } else {
      return static_cast<T>(a / b);
    }
  }
};
/// What FloorDivide leaves: it has the sign of b. Integers: by 0 it is 0, as in numpy.
struct FloorMod {
  template <class T>
  constexpr T operator()(T a, T b) const {
    T rest{0};
    if constexpr (std::is_floating_point_v<T>) {
      rest = std::fmod(a, b);
    } else if (b != T{0} && b != static_cast<T>(-1)) {
      rest = static_cast<T>(a % b);
    } else if constexpr (std::is_unsigned_v<T>) {
      if (b != T{0}) rest = static_cast<T>(a % b);
    }
    return rest != T{0} && (rest < T{0}) != (b < T{0}) ? static_cast<T>(rest + b) : rest;
  }
};
/// Integers: negative exponents give 1 / a^-b towards zero, so of 1 and -1 alone not 0.
struct Power {
  template <class T>
  constexpr T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::pow(a, b);
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
  constexpr bool operator()(auto a, auto b) const { return a == b; }
};
struct NotEqual {
  constexpr bool operator()(auto a, auto b) const { return a != b; }
};
struct Less {
  constexpr bool operator()(auto a, auto b) const { return a < b; }
};
struct LessEqual {
  constexpr bool operator()(auto a, auto b) const { return a <= b; }
};
struct Greater {
  constexpr bool operator()(auto a, auto b) const { return a > b; }
};
struct GreaterEqual {
  constexpr bool operator()(auto a, auto b) const { return a >= b; }
};
struct LogicalAnd {
  constexpr bool operator()(bool a, bool b) const { return a && b; }
};
struct LogicalOr {
  constexpr bool operator()(bool a, bool b) const { return a || b; }
};

// One input.
struct Negate {
  template <class T>
  constexpr T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return -x;
    else
      return Subtract{}(T{0}, x);
  }
};
struct Exp {
  constexpr auto operator()(auto x) const { return exp_of(x); }
};
struct Log {
  constexpr auto operator()(auto x) const { return std::log(x); }
};
struct Sqrt {
  constexpr auto operator()(auto x) const { return std::sqrt(x); }
};
struct Rsqrt {
  template <class T>
  constexpr T operator()(T x) const {
    return T{1} / std::sqrt(x);
  }
};
struct Square {
  constexpr auto operator()(auto x) const { return Multiply{}(x, x); }
};
struct Abs {
  template <class T>
  constexpr T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::abs(x);
    else if constexpr (std::is_unsigned_v<T>)
      return x;
    else
      return x < T{0} ? Negate{}(x) : x;
  }
};
struct Sign {
  template <class T>
  constexpr T operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>) {
      return x > T{0} ? T{1} : T{0};
    } else {
      if (x != x) return x;
      return static_cast<T>(static_cast<int>(x > T{0}) - static_cast<int>(x < T{0}));
    }
  }
};
struct Reciprocal {
  template <class T>
  constexpr T operator()(T x) const {
    return T{1} / x;
  }
};
struct Floor {
  constexpr auto operator()(auto x) const { return std::floor(x); }
};
struct Ceil {
  constexpr auto operator()(auto x) const { return std::ceil(x); }
};
/// In the default rounding mode: halves to even.
struct Round {
  constexpr auto operator()(auto x) const { return std::nearbyint(x); }
};
struct Erf {
  constexpr auto operator()(auto x) const { return std::erf(x); }
};
struct Log1p {
  constexpr auto operator()(auto x) const { return std::log1p(x); }
};
struct Expm1 {
  constexpr auto operator()(auto x) const { return std::expm1(x); }
};
struct Sin {
  constexpr auto operator()(auto x) const { return std::sin(x); }
};
struct Cos {
  constexpr auto operator()(auto x) const { return std::cos(x); }
};
struct LogicalNot {
  constexpr bool operator()(bool x) const { return !x; }
};
struct Relu {
  template <class T>
  constexpr T operator()(T x) const {
    return x <= T{0} ? T{0} : x;
  }  // NaN stays
};
/// Two inputs. A sum of 16-bit numbers need not be rounded first: rounding keeps signs.
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
    return Maximum{}(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
  }
};
struct Elu {
  template <class T>
  constexpr T operator()(T x) const {
    return x > T{0} ? x : std::expm1(x);
  }
};
struct Gelu {
  template <class T>
  constexpr T operator()(T x) const {
    return T(0.5) * x * (T{1} + std::erf(x * (std::numbers::sqrt2_v<T> / 2)));
  }
};
/// In which it has tanh(scale * (x + cubic * x^3)) instead.
template <class T>
struct GeluTanhTerms {
  static constexpr T kScale = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
  static constexpr T kCubic = T(0.044715);
  static constexpr T tangent(T x) { return tanh_of(kScale * (x + kCubic * (x * x * x))); }
};
struct GeluTanh {
  template <class T>
  constexpr T operator()(T x) const {
    return T(0.5) * x * (T{1} + GeluTanhTerms<T>::tangent(x));
  }
};

// Gradients: (dy, y), Gelu and GeluTanh (dy, x).
struct ReluGrad {
  template <class T>
  constexpr T operator()(T dy, T y) const {
    return y > T{0} ? dy : T{0};
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
    return y > T{0} ? dy : dy * (y + T{1});
  }
};
struct GeluGrad {
  template <class T>
  constexpr T operator()(T dy, T x) const {
    const T cumulative = T(0.5) * (T{1} + std::erf(x * (std::numbers::sqrt2_v<T> / 2)));
    const T density =
        std::exp(T(-0.5) * x * x) * (std::numbers::inv_sqrtpi_v<T> * std::numbers::sqrt2_v<T> / 2);
    return dy * (cumulative + x * density);
  }
};
struct GeluTanhGrad {
  template <class T>
  constexpr T operator()(T dy, T x) const {
    using Terms = GeluTanhTerms<T>;
    const T tangent = Terms::tangent(x);
    const T slope = Terms::kScale * (T{1} + T{3} * Terms::kCubic * (x * x));
    return dy * (T(0.5) * (T{1} + tangent) + T(0.5) * x * (T{1} - tangent * tangent) * slope);
  }
};

/// What matmul and conv2d apply to their result. NaN stays NaN.
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

/// `value` as To. Floating to integer truncates towards zero; what does not fit becomes the nearest
/// end of the range, NaN becomes 0 (C++ leaves both undefined). Anything to bool is value != 0.
template <class To, class From>
constexpr To converted(From value) {
  if constexpr (Half<From>) {
    return converted<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The lower end is exactly representable, the upper end plus one too.
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
