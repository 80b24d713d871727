// Choice of the instruction set for fast kernels, and copies that bypass the caches.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/vectorized.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "tutti/core/error.h"

namespace tutti::internal {

// The widest instruction set that kernels may use: TUTTI_MAX_ISA.

namespace {

struct Name {
  std::string_view text;
  MaxIsa isa;
};

// The first name of a value is the one that to_string() returns.
constexpr Name kNames[] = {{"sse2", MaxIsa::kSse2},  {"sse41", MaxIsa::kSse41},
                           {"avx", MaxIsa::kAvx},    {"avx2", MaxIsa::kAvx2},
                           {"all", MaxIsa::kAll},    {"avx512_core", MaxIsa::kAvx512Core},
                           {"default", MaxIsa::kAll}};

MaxIsa read_environment() {
  const char* value = std::getenv("TUTTI_MAX_ISA");
  const std::string_view text = value ? value : "";
  if (text.empty()) return MaxIsa::kAll;
  for (const Name& name : kNames) {
    if (name.text == text) return name.isa;
  }
  fail(ErrorCode::kInvalidArgument,
       "TUTTI_MAX_ISA: expected sse2, sse41, avx, avx2, avx512_core or all, got '", text, "'");
}

}  // namespace

MaxIsa max_isa() {
  static const MaxIsa isa = read_environment();
  return isa;
}

std::string_view to_string(MaxIsa isa) {
  for (const Name& name : kNames) {
    if (name.isa == isa) return name.text;
  }
  return "?";
}

#if defined(__x86_64__)
namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

Vectors find_widest() {
  if (max_isa() >= MaxIsa::kAvx512Core && has_avx512()) return Vectors::kAvx512;
  if (max_isa() >= MaxIsa::kAvx2 && __builtin_cpu_supports("avx2")) return Vectors::kAvx2;
  return Vectors::kBaseline;
}

}  // namespace

Vectors widest_vectors() {
  static const Vectors widest = find_widest();
  return widest;
}
#endif

// Copies that bypass the caches: streaming stores, which the processor combines into full cache
// lines.

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
