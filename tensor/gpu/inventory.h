// What the GPUs of a backend become: logical devices, and the lines that describe them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/gpu/gpus.h"

namespace tutti {

// What CUDA_VISIBLE_DEVICES makes of the GPUs of a machine.

/// Indices of the GPUs that CUDA shows for this value of CUDA_VISIBLE_DEVICES, in CUDA's order:
/// "1,0" renumbers, "" and "-1" hide all, an invalid index cuts the list there, an index that
/// stands twice hides all. Without a value: all of `num_devices`. Empty optional when GPUs are
/// named by UUID ("GPU-...", "MIG-..."), which says nothing about indices.
std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices);

/// Throws kInvalidArgument naming `who` for numbers below 1.
void check_virtual_gpus(std::string_view who, const VirtualGpus& virtual_gpus);

/// The parts of all GPUs: those of GPU 0 first. `mask` is CUDA_VISIBLE_DEVICES, which the backend
/// has obeyed. Throws kInvalidArgument when a GPU has less memory than its parts may take.
std::vector<LogicalGpu> split_gpus(const DeviceBackend& backend,
                                   const std::optional<std::string>& mask,
                                   const VirtualGpus& virtual_gpus);

/// "Found device 0 with properties: ...": one line.
std::string describe(const PhysicalDevice& device, int ordinal);
/// "Created gpu:0 -> (device: 0, ...)": one line.
std::string describe(const LogicalGpu& gpu);
/// Which GPU reaches which one's memory: a line of columns, then a line each.
std::vector<std::string> describe_peers(const DeviceBackend& backend);
/// All of these, as the log has them.
std::vector<std::string> describe(const DeviceBackend& backend, std::span<const LogicalGpu> gpus);

}  // namespace tutti
