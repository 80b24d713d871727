// e^x and the hyperbolic tangent of floats, in a form that compilers vectorize.
// SPDX-License-Identifier: Apache-2.0
//
// The C library needs a call per element, and its results differ between versions. Types other than
// float use the C library; GPU kernels use CUDA's functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace tutti::internal {

/// Returns e^x within 2 units in the last place, even for subnormal results; NaN stays NaN. Uses
/// Cody and Waite's reduction ("Software manual for the elementary functions", 1980) and the
/// minimax polynomial of Cephes (Moshier, expf).
[[gnu::always_inline]] constexpr float vector_exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // n * kLn2High is exact
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23; the addition rounds to an integer
  // NaN becomes -104 here, because its conversion to an integer would be undefined.
  const float bounded = x > -104.0f ? (x < 89.0f ? x : 89.0f) : -104.0f;
  const float n = (bounded * kLog2E + kToInteger) - kToInteger;
  const float r = (bounded - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  // Computes 2^n as a product of two powers, because n can be outside the exponent range of a
  // float.
  const auto exponent = static_cast<std::int32_t>(n);
  const std::int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  const float power = ((p * r) * r + r + 1.0f) * first * second;
  return x != x ? x : power;
}

/// Returns tanh(x), as accurate as vector_exp(): a polynomial near 0 (Cephes, tanhf), elsewhere a
/// function of e^2x.
[[gnu::always_inline]] constexpr float vector_tanh(float x) {
  const float magnitude = std::abs(x);
  const float far = 1.0f - 2.0f / (vector_exp(2.0f * magnitude) + 1.0f);
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float near = (p * square) * magnitude + magnitude;
  return std::copysign(magnitude < 0.625f ? near : far, x);
}

template <class T>
[[gnu::always_inline]] constexpr T exp_of(T x) {
#if !defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return vector_exp(x);
#endif
  return std::exp(x);
}

template <class T>
[[gnu::always_inline]] constexpr T tanh_of(T x) {
#if !defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return vector_tanh(x);
#endif
  return std::tanh(x);
}

}  // namespace tutti::internal
