// What the values of all ranks combine to, computed slowly and apart from the library.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/expected.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/core/text.h"

namespace tutti::conformance {
namespace {

template <class T>
std::string text_of(T value) {
  std::ostringstream out;
  out.precision(20);
  if constexpr (std::is_integral_v<T>) {
    out << static_cast<std::int64_t>(value);
  } else {
    out << static_cast<double>(value);
  }
  return out.str();
}

template <class T>
bool same_bits_or_nan(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (a != a && b != b);
}

template <class T>
T integer_combination(ReduceOp op, std::span<const T> values) {
  if (op == ReduceOp::kMin) return *std::ranges::min_element(values);
  if (op == ReduceOp::kMax) return *std::ranges::max_element(values);
  std::uint64_t result = op == ReduceOp::kProduct ? 1 : 0;
  for (const T value : values) {
    const auto x = static_cast<std::uint64_t>(value);
    result = op == ReduceOp::kProduct ? result * x : result + x;
  }
  return static_cast<T>(result);
}

/// By the definition of docs/determinism.md.
template <class T>
T tree_combination(ReduceOp op, std::span<const T> values) {
  const auto combine = [op](T a, T b) -> T {
    if (op == ReduceOp::kMin) return b < a || b != b ? b : a;
    if (op == ReduceOp::kMax) return b > a || b != b ? b : a;
    return op == ReduceOp::kProduct ? a * b : a + b;
  };
  std::array<T, 64> level;
  std::ranges::copy(values, level.begin());
  for (std::size_t n = values.size(); n > 1; n = (n + 1) / 2) {
    for (std::size_t k = 0; k < n / 2; ++k) level[k] = combine(level[2 * k], level[2 * k + 1]);
    if (n % 2 == 1) level[n / 2] = level[n - 1];
  }
  if (op == ReduceOp::kMean && values.size() > 1) return level[0] / static_cast<T>(values.size());
  return level[0];
}

/// The combination, and how far any order of additions in a type of this epsilon may be from it.
struct Bounded {
  long double value = 0;
  long double error = 0;
};

template <class T>
Bounded wide_combination(ReduceOp op, std::span<const T> values) {
  long double sum = 0, magnitude = 0, product = 1, least = values[0], most = values[0];
  bool has_nan = false;
  for (const T value : values) {
    const long double x = value;
    has_nan = has_nan || x != x;
    sum += x;
    magnitude += std::abs(x);
    product *= x;
    least = std::min(least, x);
    most = std::max(most, x);
  }
  if (has_nan) return {std::numeric_limits<long double>::quiet_NaN(), 0};
  const auto n = static_cast<long double>(values.size());
  const long double epsilon = std::numeric_limits<T>::epsilon();
  const long double tiny = n * std::numeric_limits<T>::denorm_min();
  if (op == ReduceOp::kMin) return {least, 0};
  if (op == ReduceOp::kMax) return {most, 0};
  if (op == ReduceOp::kProduct) return {product, std::abs(product) * n * epsilon + tiny};
  if (op == ReduceOp::kMean) return {sum / n, magnitude * epsilon + tiny};
  return {sum, magnitude * n * epsilon};
}

/// A 16-bit result lies between the roundings of the ends.
template <class T>
std::string outside(const Bounded& expected, T got) {
  using Wide = std::conditional_t<Half<T>, double, long double>;
  const auto rounded = [](long double x) {
    if constexpr (Half<T>) return static_cast<double>(T(static_cast<double>(x)));
    return static_cast<Wide>(x);
  };
  const auto number = static_cast<Wide>(static_cast<std::conditional_t<Half<T>, double, T>>(got));
  const long double v = expected.value;
  bool right = false;
  if (v != v) {
    right = number != number;
  } else if (std::isinf(v)) {
    right = static_cast<long double>(number) == v;
  } else {
    right = number >= rounded(v - expected.error) && number <= rounded(v + expected.error);
  }
  if (right) return {};
  return concat("expected ", text_of(static_cast<double>(v)), " within ",
                static_cast<double>(expected.error), ", got ", text_of(got));
}

template <class T>
std::string wrong_bits(T expected, T got) {
  if (same_bits_or_nan(expected, got)) return {};
  return concat("expected the bits of ", text_of(expected), ", got ", text_of(got));
}

}  // namespace

template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got) {
  if constexpr (std::is_integral_v<T>) {
    return wrong_bits(integer_combination(op, values), got);
  } else if constexpr (Half<T>) {
    std::array<float, 64> storage;
    for (std::size_t r = 0; r < values.size(); ++r) storage[r] = static_cast<float>(values[r]);
    const std::span<const float> wide(storage.data(), values.size());
    if (grade == Determinism::kCanonical) return wrong_bits(T(tree_combination(op, wide)), got);
    return outside(wide_combination(op, wide), got);
  } else {
    std::string wrong = outside(wide_combination(op, values), got);
    if (wrong.empty() && grade == Determinism::kCanonical) {
      wrong = wrong_bits(tree_combination(op, values), got);
    }
    return wrong;
  }
}

template std::string wrong_combination(ReduceOp, Determinism, std::span<const float>, float);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const double>, double);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::int32_t>,
                                       std::int32_t);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::int64_t>,
                                       std::int64_t);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::uint8_t>,
                                       std::uint8_t);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const BFloat16>, BFloat16);
template std::string wrong_combination(ReduceOp, Determinism, std::span<const Float16>, Float16);

}  // namespace tutti::conformance
