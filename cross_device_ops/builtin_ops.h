// The operations that this build brings.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

std::vector<std::pair<std::string, CrossDeviceOpsFactory>> builtin_cross_device_ops();

/// Why "nccl" cannot be used here, in one line; empty when it can.
std::string why_no_nccl();

}  // namespace tutti::internal
