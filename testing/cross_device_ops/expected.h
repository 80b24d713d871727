// What the values of all ranks combine to, computed slowly and apart from the library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/testing/cross_device_ops/values.h"

namespace tutti::conformance {

/// Nothing when `got` is a right combination of `values` (one per rank); else what was expected.
/// Integers are exact modulo 2^bits. Floating numbers lie within the rounding error of any order of
/// float additions (16-bit types: added as float32, rounded once); for kCanonical they have the
/// bits of the tree. NaN where one of the values is NaN, or inf - inf, or 0 * inf.
template <class T>
std::string wrong_combination(ReduceOp op, Determinism grade, std::span<const T> values, T got);

extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const float>, float);
extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const double>,
                                              double);
extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::int32_t>,
                                              std::int32_t);
extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::int64_t>,
                                              std::int64_t);
extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const std::uint8_t>,
                                              std::uint8_t);
extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const BFloat16>,
                                              BFloat16);
extern template std::string wrong_combination(ReduceOp, Determinism, std::span<const Float16>,
                                              Float16);

}  // namespace tutti::conformance
