// Slow combinations of values, computed without the library's reductions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "tutti/cross_device_ops/collective.h"

namespace tutti::conformance {

/// Calls `visitor.template operator()<T>()` with the type that holds an element: bool is a byte.
template <class Visitor>
decltype(auto) visit_stored(DType dtype, Visitor&& visitor) {
  return visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      return visitor.template operator()<std::uint8_t>();
    } else {
      return visitor.template operator()<T>();
    }
  });
}

/// Returns "" if `got` is a right combination of `values` (one per rank, at most 64), else what was
/// expected. Integers are exact modulo 2^bits. For kCanonical, floating numbers have the bits of
/// the tree; otherwise they lie within the rounding error of any order of float additions (16-bit
/// types: added as float32, rounded once). NaN where one of the values is NaN, or inf - inf, or
/// 0 * inf.
template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got);

}  // namespace tutti::conformance
