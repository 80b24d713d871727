// Elements in kernels: numbers, packs of 16 bytes, fast division.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tutti/tensor/dtype.h"

namespace tutti::cuda {

// Kernel parameters with arrays are `const __grid_constant__`; otherwise each thread would copy
// them.

// Lists of types: the floating-point types, and all types except bool.
#define TUTTI_FLOATING_TYPES float, double, BFloat16, Float16
#define TUTTI_NUMBER_TYPES TUTTI_FLOATING_TYPES, std::int32_t, std::int64_t, std::uint8_t

/// Type in which kernels compute with elements of type T: float for 16-bit numbers, else T.
template <class T>
using Number = std::conditional_t<Half<T>, float, T>;

/// Converts an element to a number, exactly.
template <class T>
__device__ __forceinline__ Number<T> number(T value) {
  if constexpr (std::is_same_v<T, Float16>) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
#else
    return static_cast<float>(value);
#endif
  } else {
    return static_cast<Number<T>>(value);
  }
}

/// Converts a number to an element, rounding once (to nearest, ties to even).
template <class T, class From>
__device__ __forceinline__ T element(From value) {
  if constexpr (std::is_same_v<T, From> || !Half<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<From, float>) {
#if defined(__CUDA_ARCH__)
    T result;
    if constexpr (std::is_same_v<T, Float16>) {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    } else {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    }
    return result;
#else
    return T(value);
#endif
  } else {
    return T(static_cast<double>(value));
  }
}

/// Elements that are read or written together.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T elements[kWidth];
};

/// 16 bytes of elements, for kernels that only move them.
struct alignas(16) Bytes16 {
  std::uint64_t low, high;
};

/// Return true if the address is a multiple of `bytes`. is_aligned() is for the host, starts_at()
/// for kernels.
inline bool is_aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

__device__ __forceinline__ bool starts_at(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// Calls visitor.template operator()<T>() with a type T of `bytes` (1, 2, 4, 8 or 16) bytes.
template <class Visitor>
void visit_bytes(std::size_t bytes, const Visitor& visitor) {
  switch (bytes) {
    case 1:
      return visitor.template operator()<std::uint8_t>();
    case 2:
      return visitor.template operator()<std::uint16_t>();
    case 4:
      return visitor.template operator()<std::uint32_t>();
    case 8:
      return visitor.template operator()<std::uint64_t>();
    default:
      return visitor.template operator()<Bytes16>();
  }
}

/// Division of numbers below 2^31 by a divisor that the host prepares (Granlund and Montgomery,
/// "Division by invariant integers using multiplication", 1994).
struct Divisor {
  Divisor() = default;
  explicit Divisor(std::uint32_t divisor)
      : multiplier(0), shift(static_cast<std::uint32_t>(std::bit_width(divisor - 1u))) {
    const std::uint64_t rest = (std::uint64_t{1} << shift) - divisor;
    multiplier = static_cast<std::uint32_t>((rest << 32) / divisor + 1);
  }
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t value) const {
    const auto high = static_cast<std::uint32_t>(std::uint64_t{value} * multiplier >> 32);
    return (high + value) >> shift;
  }
  std::uint32_t multiplier = 0, shift = 0;
};

/// Exclusive upper bound on the numbers that a Divisor can divide.
inline constexpr std::int64_t kSmall = std::int64_t{1} << 31;

/// Divides larger numbers. This takes many instructions, so there is one copy per file.
__device__ __attribute__((noinline)) inline std::int64_t quotient_of_large(std::int64_t value,
                                                                           std::int64_t divisor) {
  return value / divisor;
}

/// Return the index of this thread in the launch, and the number of threads.
__device__ __forceinline__ std::int64_t thread_number() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t num_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

// Packs: their sizes, and the arrays that can be read in packs.

/// Number of elements of type T in 16 bytes.
template <class T>
inline constexpr int kPackOf = static_cast<int>(16 / sizeof(T));
/// Number of elements of type T in a smaller pack, for kernels that keep one sum per element.
template <class T>
inline constexpr int kFewOf = sizeof(T) == 8 ? 2 : 4;

/// Returns true if arrays whose last dimension is `width` can be read as Pack<T, elements> that do
/// not cross rows. nullptr is allowed.
template <class T, int elements, class... Pointers>
bool can_pack(std::int64_t width, Pointers... pointers) {
  return width % elements == 0 && (is_aligned(pointers, alignof(Pack<T, elements>)) && ...);
}

}  // namespace tutti::cuda
