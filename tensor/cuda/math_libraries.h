// The handles of cuBLAS and cuDNN that one logical device uses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::cuda {

/// One per logical device, used by one thread at a time, with the device's GPU selected.
class MathLibraries {};

inline std::string math_libraries_description() { return "no cuBLAS, no cuDNN"; }

}  // namespace tutti::cuda
