// Which GPUs replicas are on, and which operation suits that.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_placement.h"

#include "cross_device_ops/device_work.h"

namespace tutti::internal {

std::optional<SharedGpu> find_shared_gpu(std::span<const Device> devices) {
  const auto ordinal = [&](std::size_t r) {
    return GpuDevice::of(devices[r]).description().ordinal;
  };
  for (std::size_t second = 1; second < devices.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (ordinal(first) == ordinal(second)) return SharedGpu{first, second, ordinal(first)};
    }
  }
  return std::nullopt;
}

bool are_connected(std::span<const Device> devices) {
  for (const Device& reader : devices) {
    for (const Device& owner : devices) {
      if (!reaches(reader, owner)) return false;
    }
  }
  return true;
}

GpuChoice choose_for_gpus(std::span<const Device> devices) {
  if (const auto shared = find_shared_gpu(devices)) {
    return {"canonical", concat("replicas ", shared->first, " and ", shared->second, " share GPU ",
                                shared->ordinal, ", which nccl refuses")};
  }
  const std::string missing = why_no_nccl();
  if (missing.empty()) return {"nccl", "each replica has a GPU of its own"};
  if (are_connected(devices)) {
    return {"hierarchical_copy", concat("the GPUs read each other's memory; ", missing)};
  }
  return {"canonical", concat("not all GPUs read each other's memory; ", missing)};
}

}  // namespace tutti::internal
