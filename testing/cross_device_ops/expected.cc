// Combinations along the canonical tree, in any type, and how far other orders may be from them.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/expected.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

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
T combined(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMin) return b < a || b != b ? b : a;
  if (op == ReduceOp::kMax) return b > a || b != b ? b : a;
  if constexpr (std::is_integral_v<T>) {  // unsigned: it wraps around
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
  } else {
    return op == ReduceOp::kProduct ? a * b : a + b;
  }
}

/// Combines `values`, converted to Wide, along the tree of docs/determinism.md.
template <class Wide, class T>
Wide tree_combination(ReduceOp op, std::span<const T> values) {
  std::array<Wide, 64> level;
  std::ranges::copy(values, level.begin());
  for (std::size_t n = values.size(); n > 1; n = (n + 1) / 2) {
    for (std::size_t k = 0; k < n / 2; ++k) level[k] = combined(op, level[2 * k], level[2 * k + 1]);
    if (n % 2 == 1) level[n / 2] = level[n - 1];
  }
  return op == ReduceOp::kMean ? level[0] / static_cast<Wide>(values.size()) : level[0];
}

/// Returns how far any order of additions in T may be from `exact`.
template <class T>
long double error_bound(ReduceOp op, std::span<const T> values, long double exact) {
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return 0;
  const auto n = static_cast<long double>(values.size());
  const long double epsilon = std::numeric_limits<T>::epsilon();
  const long double tiny = n * std::numeric_limits<T>::denorm_min();
  if (op == ReduceOp::kProduct) return std::abs(exact) * n * epsilon + tiny;
  long double magnitude = 0;
  for (const T value : values) magnitude += std::abs(static_cast<long double>(value));
  return op == ReduceOp::kMean ? magnitude * epsilon + tiny : magnitude * n * epsilon;
}

/// `got` lies within the rounding errors of additions in Step; a 16-bit one between the roundings
/// of the ends.
template <class T, class Step>
std::string out_of_bounds(ReduceOp op, std::span<const Step> values, T got) {
  const auto exact = tree_combination<long double>(op, values);
  const auto error = error_bound(op, values, exact);
  const auto rounded = [](long double x) -> long double {
    if constexpr (Half<T>) return static_cast<Step>(T(static_cast<double>(x)));
    return x;
  };
  const long double number = static_cast<Step>(got);
  if (exact != exact      ? number != number
      : std::isinf(exact) ? number == exact
                          : number >= rounded(exact - error) && number <= rounded(exact + error)) {
    return {};
  }
  return concat("expected ", text_of(static_cast<double>(exact)), " within ",
                static_cast<double>(error), ", got ", text_of(got));
}

}  // namespace

template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got) {
  using Step = std::conditional_t<Half<T>, float, T>;
  std::array<Step, 64> steps;
  std::ranges::transform(values, steps.begin(), [](T value) { return static_cast<Step>(value); });
  const std::span<const Step> added(steps.data(), values.size());
  if constexpr (!std::is_integral_v<T>) {
    if (grade != Determinism::kCanonical) return out_of_bounds(op, added, got);
  }
  const T expected = T(tree_combination<Step>(op, added));
  const bool is_same = std::memcmp(&expected, &got, sizeof(T)) == 0;
  if (is_same || (expected != expected && got != got)) return {};
  return concat("expected the bits of ", text_of(expected), ", got ", text_of(got));
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
