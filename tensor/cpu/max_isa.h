// The widest instruction set that kernels may use: TUTTI_MAX_ISA.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tutti::internal {

/// In rising order. Our own loops know three versions, below AVX2, AVX2 and AVX-512; oneDNN knows
/// them all (kSse2 counts as its lowest).
enum class MaxIsa { kSse2, kSse41, kAvx, kAvx2, kAvx512Core, kAll };

/// What the environment variable TUTTI_MAX_ISA says (sse2, sse41, avx, avx2, avx512_core, all or
/// its synonym default); all when it is not set. Read once. Throws kInvalidArgument listing the
/// names.
MaxIsa max_isa();
std::string_view to_string(MaxIsa isa);

}  // namespace tutti::internal
