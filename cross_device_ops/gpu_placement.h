// Which GPUs replicas are on, and which operation suits that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "tutti/tensor/device.h"

namespace tutti::internal {

/// Two replicas on one GPU.
struct SharedGpu {
  std::size_t first = 0, second = 0;  // replicas
  int ordinal = 0;
};
/// The first two of `devices`, all GPUs, that are parts of the same one.
std::optional<SharedGpu> find_shared_gpu(std::span<const Device> devices);

/// Whether each of these GPUs can read the memory of each other.
bool are_connected(std::span<const Device> devices);

struct GpuChoice {
  std::string name;  // of the operation
  std::string why;
};
/// The operation for replicas on these GPUs when none is named: nccl, where each replica has its
/// own GPU and NCCL is there; else one that reads peers' memory.
GpuChoice choose_for_gpus(std::span<const Device> devices);

/// Why "nccl" cannot be used here, in one line; empty when it can.
std::string why_no_nccl();

}  // namespace tutti::internal
