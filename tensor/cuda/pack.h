// Several elements that a thread loads and stores at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// N neighbours of type T, aligned so that they move in one instruction (at most 16 bytes).
template <class T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Pack {
  T values[N];
};

/// Whether arrays whose last dimension is `width` can be taken in packs of `bytes_of_pack`, each of
/// them within one row.
template <class... Pointers>
bool can_pack(std::int64_t width, int elements, std::size_t bytes_of_pack, Pointers... pointers) {
  const auto fits = [&](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % (bytes_of_pack < 16 ? bytes_of_pack : 16) ==
           0;
  };
  return width % elements == 0 && (fits(pointers) && ...);
}

/// Elements of type T in 16 bytes.
template <class T>
inline constexpr int kPackOf = static_cast<int>(16 / sizeof(T));
/// Fewer, for kernels that keep sums of each.
template <class T>
inline constexpr int kFewOf = sizeof(T) == 8 ? 2 : 4;

}  // namespace tutti::cuda
