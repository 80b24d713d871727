// Scatter operations on rows of a tensor, and their formulas for one element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace tutti {

/// Operation that combines a row of a tensor with a given row.
enum class ScatterOp { kAdd, kSubtract, kMultiply, kDivide, kMin, kMax, kUpdate };

namespace internal {

/// Returns `old_value` combined with `value`. bool supports only kUpdate. An integer divided by 0
/// stays unchanged. constexpr because GPU kernels also call it.
template <class T>
constexpr T scattered(ScatterOp op, T old_value, T value) {
  if constexpr (!std::is_same_v<T, bool>) {
    switch (op) {
      case ScatterOp::kAdd:
        return static_cast<T>(old_value + value);
      case ScatterOp::kSubtract:
        return static_cast<T>(old_value - value);
      case ScatterOp::kMultiply:
        return static_cast<T>(old_value * value);
      case ScatterOp::kDivide:
        if constexpr (std::is_integral_v<T>) {
          if (value == T{0}) return old_value;
        }
        return static_cast<T>(old_value / value);
      case ScatterOp::kMin:
        return value < old_value ? value : old_value;
      case ScatterOp::kMax:
        return old_value < value ? value : old_value;
      case ScatterOp::kUpdate:
        break;
    }
  }
  return value;
}

}  // namespace internal
}  // namespace tutti
