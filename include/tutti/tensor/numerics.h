// Fingerprint of the kernels and libraries that determine the exact bits of one replica's results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// Version of tutti's kernels, incremented whenever a kernel changes its order of operations.
inline constexpr int kKernelVersion = 3;

/// Returns text such as "kernels 3, oneDNN 2.6.3, avx2". Runs with equal fingerprints can be
/// compared bit by bit (docs/determinism.md).
std::string numerics_fingerprint();

}  // namespace tutti
