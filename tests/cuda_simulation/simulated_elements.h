// Elements of any floating type as double, for the stand-ins of cuBLASLt and cuDNN.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "tutti/tensor/dtype.h"

namespace tutti::cuda_simulation {

inline double element(DType dtype, const void* data, std::int64_t i) {
  return visit_floating(dtype, "simulated library", [&]<class T>() {
    return static_cast<double>(static_cast<const T*>(data)[i]);
  });
}

/// Rounded once.
inline void set_element(DType dtype, void* data, std::int64_t i, double value) {
  visit_floating(dtype, "simulated library",
                 [&]<class T>() { static_cast<T*>(data)[i] = static_cast<T>(value); });
}

/// As tensor cores see a float32: 10 bits of fraction.
inline double as_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}

inline bool is_aligned(const void* pointer, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace tutti::cuda_simulation
