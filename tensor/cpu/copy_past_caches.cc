// Streaming stores, of which the processor gathers whole lines.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/copy_past_caches.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tutti::internal {

#if defined(__x86_64__)
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t count) {
  constexpr std::size_t kLine = 64, kStore = 16;
  const std::size_t head =
      std::min(count, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  const std::size_t lines = (count - head) / kLine * kLine;
  if (head > 0) std::memcpy(to, from, head);
  for (std::size_t i = head; i < head + lines; i += kStore) {
    const auto* place = reinterpret_cast<const __m128i*>(from + i);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(place));
  }
  const std::size_t done = head + lines;
  if (done < count) std::memcpy(to + done, from + done, count - done);
}

void finish_copies() { _mm_sfence(); }
#else
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t count) {
  if (count > 0) std::memcpy(to, from, count);
}

void finish_copies() {}
#endif

}  // namespace tutti::internal
