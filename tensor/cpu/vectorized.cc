// Which instruction set the fast kernels use.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/vectorized.h"

#include "tutti/tensor/cpu/max_isa.h"

namespace tutti::internal {

#if defined(__x86_64__)
bool use_avx2() {
  static const bool use = max_isa() >= MaxIsa::kAvx2 && __builtin_cpu_supports("avx2");
  return use;
}
#endif

}  // namespace tutti::internal
