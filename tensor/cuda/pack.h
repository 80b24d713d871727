// Which arrays can be taken in packs, and how large these are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/tensor/cuda/elements.h"

namespace tutti::cuda {

/// Elements of type T in 16 bytes.
template <class T>
inline constexpr int kPackOf = static_cast<int>(16 / sizeof(T));
/// Fewer, for kernels that keep sums of each.
template <class T>
inline constexpr int kFewOf = sizeof(T) == 8 ? 2 : 4;

/// Whether arrays whose last dimension is `width` can be taken as Pack<T, elements>, each of them
/// within one row. nullptr fits.
template <class T, int elements, class... Pointers>
bool can_pack(std::int64_t width, Pointers... pointers) {
  return width % elements == 0 && (is_aligned(pointers, alignof(Pack<T, elements>)) && ...);
}

}  // namespace tutti::cuda
