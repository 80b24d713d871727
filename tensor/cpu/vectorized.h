// Loops that use the machine's widest vector instructions, and copies that bypass its caches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace tutti::internal {

// The widest instruction set that kernels may use: TUTTI_MAX_ISA.

/// Instruction sets, in ascending order. tutti's loops have three versions: one for AVX-512, one
/// for AVX2, and one for all lower sets. oneDNN distinguishes all sets listed here (kSse2 counts as
/// its lowest).
enum class MaxIsa { kSse2, kSse41, kAvx, kAvx2, kAvx512Core, kAll };

/// Returns the value of the environment variable TUTTI_MAX_ISA (sse2, sse41, avx, avx2,
/// avx512_core, all or its synonym default), or all if it is not set. Reads it only once. Throws
/// kInvalidArgument for any other value, listing the names.
MaxIsa max_isa();
std::string_view to_string(MaxIsa isa);

#if defined(__x86_64__)
enum class Vectors { kBaseline, kAvx2, kAvx512 };

/// Returns the widest vectors that this processor has and TUTTI_MAX_ISA allows.
Vectors widest_vectors();

template <class Body>
[[gnu::target("avx2"), gnu::noinline]] void run_avx2(const Body& body) {
  body();
}

template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::noinline]] void run_avx512(
    const Body& body) {
  body();
}
#endif

/// Calls body(), a lambda marked [[gnu::always_inline]] so that its loops are compiled once per
/// instruction set. No version fuses a multiplication and an addition, so all give bit-identical
/// results.
template <class Body>
void vectorized(const Body& body) {
#if defined(__x86_64__)
  switch (widest_vectors()) {
    case Vectors::kAvx512:
      return run_avx512(body);
    case Vectors::kAvx2:
      return run_avx2(body);
    case Vectors::kBaseline:
      break;
  }
#endif
  body();
}

// Copies of data that will not be read soon.

/// Same as std::memcpy(), but bypasses the caches if the processor can. This takes half the time
/// for copies larger than the caches, but more time if the copy is read immediately. Other threads
/// see the copy after finish_copies(). Thread-safe.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t count);

/// Makes this thread's copies visible before its later stores.
void finish_copies();

}  // namespace tutti::internal
