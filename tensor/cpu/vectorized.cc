// Which instruction set the fast kernels use.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/vectorized.h"

#include "tutti/tensor/cpu/max_isa.h"

namespace tutti::internal {

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

}  // namespace tutti::internal
