// Which instruction set the fast kernels use.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/vectorized.h"

#include <cstdlib>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti::internal {

#if defined(__x86_64__)
namespace {

bool choose_avx2() {
  const char* value = std::getenv("TUTTI_MAX_ISA");
  const std::string_view cap = value ? value : "";
  if (cap == "sse2") return false;
  if (cap.empty() || cap == "avx2") return __builtin_cpu_supports("avx2");
  fail(ErrorCode::kInvalidArgument, "TUTTI_MAX_ISA: expected sse2 or avx2, got '", cap, "'");
}

}  // namespace

bool use_avx2() {
  static const bool use = choose_avx2();
  return use;
}
#endif

}  // namespace tutti::internal
