// Numbers as kernels calculate with them: float for 16-bit types, double for float64.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <type_traits>

#include "tutti/tensor/half.h"

namespace tutti::cuda {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
__device__ inline Wide<T> widen(T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Float16>) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
  }
#endif
  return static_cast<Wide<T>>(value);
}

/// Rounded once.
template <class T>
__device__ inline T narrow(Wide<T> value) {
  if constexpr (Half<T>) {
#if defined(__CUDA_ARCH__)
    T result;
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    }
    return result;
#else
    return T(static_cast<double>(value));
#endif
  } else {
    return value;
  }
}

}  // namespace tutti::cuda
