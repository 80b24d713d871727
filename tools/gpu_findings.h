// What `tutti doctor` says about GPUs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tools/finding.h"

namespace tutti::tools {

/// GPUs or why there are none, the module, and a line for each CUDA library that it needs.
std::vector<Finding> inspect_gpus();

}  // namespace tutti::tools
