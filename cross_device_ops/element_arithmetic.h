// Arithmetic in host memory: how two elements are combined, and the order in which many are
// combined.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensor/cpu/vectorized.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

template <ReduceOp op, class T>
[[gnu::always_inline]] inline T combined(T a, T b) {
  if constexpr (std::is_integral_v<T> && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) {
    // Integers wrap around, as in all tensor operations.
    using Unsigned = std::make_unsigned_t<T>;
    const auto x = static_cast<Unsigned>(a);
    const auto y = static_cast<Unsigned>(b);
    return static_cast<T>(op == ReduceOp::kSum ? x + y : x * y);
  }
  if constexpr (op == ReduceOp::kSum) return a + b;
  // The result is NaN if either value is NaN, so it does not depend on which replica has the NaN.
  if constexpr (op == ReduceOp::kMin) return (b < a || b != b) ? b : a;
  if constexpr (op == ReduceOp::kMax) return (a < b || b != b) ? b : a;
  if constexpr (op == ReduceOp::kProduct) return a * b;
}

/// sum[i] = sum[i] op addend[i].
template <ReduceOp op, class T>
void combine_into_left(T* __restrict sum, const T* __restrict addend, std::size_t count) {
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) sum[i] = combined<op>(sum[i], addend[i]);
  });
}
/// sum[i] = addend[i] op sum[i].
template <ReduceOp op, class T>
void combine_into_right(const T* __restrict addend, T* __restrict sum, std::size_t count) {
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) sum[i] = combined<op>(addend[i], sum[i]);
  });
}
template <ReduceOp op, class T>
void combine_to(T* __restrict out, const T* __restrict a, const T* __restrict b,
                std::size_t count) {
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) out[i] = combined<op>(a[i], b[i]);
  });
}

/// Returns the number of replicas in the left half of a tree of n >= 2 replicas. Each half is
/// combined recursively, then the two results are combined.
constexpr std::size_t left_half(std::size_t n) { return std::bit_floor(n - 1); }

/// Returns the sum of values[first], ..., values[first + n - 1] along the tree.
template <std::size_t first, std::size_t n, class T>
[[gnu::always_inline]] inline T sum_of_tree(const T* values) {
  if constexpr (n == 1) {
    return values[first];
  } else {
    constexpr std::size_t half = left_half(n);
    return sum_of_tree<first, half>(values) + sum_of_tree<first + half, n - half>(values);
  }
}

/// Largest number of values that are summed in registers. with_size() calls body.operator()<n>()
/// for n == size.
inline constexpr std::size_t kMostInRegisters = 8;
template <std::size_t n = 2, class Body>
void with_size(std::size_t size, const Body& body) {
  if (size == n) return body.template operator()<n>();
  if constexpr (n < kMostInRegisters) with_size<n + 1>(size, body);
}

/// Returns true if the pointer is aligned for T.
template <class T>
bool is_aligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(T) == 0;
}

}  // namespace tutti::internal
