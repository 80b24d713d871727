// The fingerprint of what the bits of one replica may depend on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// Raised whenever one of our own kernels changes its order of operations.
inline constexpr int kKernelVersion = 3;

/// "kernels 3, oneDNN 2.6.3, avx2": two runs with equal fingerprints are comparable bit by bit
/// (docs/determinism.md).
std::string numerics_fingerprint();

}  // namespace tutti
