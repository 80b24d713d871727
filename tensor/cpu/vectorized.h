// Running a loop with the widest vectors of this machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::internal {

#if defined(__x86_64__)
/// Whether this processor has AVX2 and TUTTI_MAX_ISA (max_isa.h) does not forbid it.
bool use_avx2();

template <class Body>
[[gnu::target("avx2"), gnu::noinline]] void run_avx2(const Body& body) {
  body();
}
#endif

/// Calls body(), a lambda marked [[gnu::always_inline]] so that its loops are compiled once per
/// instruction set. Neither version contracts a multiplication and an addition into one rounding,
/// so both give the same bits.
template <class Body>
void vectorized(const Body& body) {
#if defined(__x86_64__)
  if (use_avx2()) {
    run_avx2(body);
    return;
  }
#endif
  body();
}

}  // namespace tutti::internal
