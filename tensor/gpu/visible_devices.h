// What CUDA_VISIBLE_DEVICES makes of the GPUs of a machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tutti {

/// Indices of the GPUs that CUDA shows for this value of CUDA_VISIBLE_DEVICES, in CUDA's order:
/// "1,0" renumbers, "" and "-1" hide all, an invalid index cuts the list there, an index that
/// stands twice hides all. Without a value: all of `num_devices`. Empty optional when GPUs are
/// named by UUID ("GPU-...", "MIG-..."), which says nothing about indices.
std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices);

}  // namespace tutti
