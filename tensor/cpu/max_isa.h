// The widest instruction set that kernels may use: TUTTI_MAX_ISA.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tutti::internal {

/// In rising order. Our own loops know two versions, below AVX2 and AVX2; oneDNN knows them all
/// (kSse2 counts as its lowest).
enum class MaxIsa { kSse2, kSse41, kAvx, kAvx2, kAvx512Core, kAll };

/// What the environment variable TUTTI_MAX_ISA says (sse2, sse41, avx, avx2, avx512_core, all or
/// its synonym default); avx2 when it is not set, so that a newer processor gives the same bits.
/// Read once. Throws kInvalidArgument listing the names.
MaxIsa max_isa();
std::string_view to_string(MaxIsa isa);

}  // namespace tutti::internal
