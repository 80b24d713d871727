// 16-bit floating-point numbers: storage, exact conversion, and arithmetic in float.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <compare>
#include <concepts>
#include <cstdint>
#include <ostream>

namespace tutti {
namespace internal {

/// Returns the bits of `value` in the format with a sign bit, kExponentBits exponent bits and
/// kFractionBits fraction bits. Rounds once to nearest, ties to even. Values that are too large
/// become infinity, and small values become denormal or 0. A NaN becomes a quiet NaN with the same
/// sign and the upper bits of its payload.
template <int kExponentBits, int kFractionBits>
constexpr std::uint16_t narrowed(double value) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 48 & 0x8000u);
  const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr int kDropped = 52 - kFractionBits;
  constexpr std::uint16_t kInfinity = ((1u << kExponentBits) - 1u) << kFractionBits;
  constexpr std::uint64_t kOne = 1;
  if (magnitude > 0x7ff0000000000000u) {
    const auto payload =
        static_cast<std::uint16_t>(magnitude >> kDropped & ((1u << kFractionBits) - 1u));
    return static_cast<std::uint16_t>(sign | kInfinity | payload | 1u << (kFractionBits - 1));
  }
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent > kBias) return static_cast<std::uint16_t>(sign | kInfinity);
  const std::uint64_t fraction = magnitude & ((kOne << 52) - 1);
  // In normal results, the exponent field is above the fraction; in denormal results, the leading 1
  // bit is shifted into the fraction.
  const int below = 1 - kBias - exponent;
  const int shift = kDropped + (below > 0 ? below : 0);
  if (shift > 54) return sign;
  const std::uint64_t significand =
      below > 0 ? fraction | kOne << 52
                : fraction | static_cast<std::uint64_t>(exponent + kBias) << 52;
  const std::uint64_t kept = significand >> shift;
  const std::uint64_t rest = significand & ((kOne << shift) - 1), half = kOne << (shift - 1);
  const bool up = rest > half || (rest == half && (kept & 1u) != 0);
  // Rounding up may carry into the exponent.
  return static_cast<std::uint16_t>(sign | (kept + (up ? 1u : 0u)));
}

/// Converts IEEE binary16 to float, exactly.
constexpr float widened_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace internal

/// bfloat16, the upper half of a float: 8 exponent bits and 7 fraction bits.
struct BFloat16 {
  BFloat16() = default;
  explicit constexpr BFloat16(double value) : bits(internal::narrowed<8, 7>(value)) {}
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  explicit constexpr operator double() const { return static_cast<float>(*this); }
  std::uint16_t bits = 0;
};

/// float16, IEEE binary16: 5 exponent bits and 10 fraction bits.
struct Float16 {
  Float16() = default;
  explicit constexpr Float16(double value) : bits(internal::narrowed<5, 10>(value)) {}
  explicit constexpr operator float() const { return internal::widened_half(bits); }
  explicit constexpr operator double() const { return static_cast<float>(*this); }
  std::uint16_t bits = 0;
};

template <class T>
concept Half = std::same_as<T, BFloat16> || std::same_as<T, Float16>;

// Operations in float, rounded to 16 bits. The results equal exact results rounded once, because
// float has more than twice as many fraction bits.
template <Half T>
constexpr T operator+(T a, T b) {
  return T(static_cast<float>(a) + static_cast<float>(b));
}
template <Half T>
constexpr T operator-(T a, T b) {
  return T(static_cast<float>(a) - static_cast<float>(b));
}
template <Half T>
constexpr T operator*(T a, T b) {
  return T(static_cast<float>(a) * static_cast<float>(b));
}
template <Half T>
constexpr T operator/(T a, T b) {
  return T(static_cast<float>(a) / static_cast<float>(b));
}
template <Half T>
constexpr T& operator+=(T& a, T b) {
  return a = a + b;
}
template <Half T>
constexpr T& operator-=(T& a, T b) {
  return a = a - b;
}
template <Half T>
constexpr bool operator==(T a, T b) {
  return static_cast<float>(a) == static_cast<float>(b);
}
template <Half T>
constexpr std::partial_ordering operator<=>(T a, T b) {
  return static_cast<float>(a) <=> static_cast<float>(b);
}
template <Half T>
std::ostream& operator<<(std::ostream& out, T value) {
  return out << static_cast<float>(value);
}

static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);

}  // namespace tutti
