// GPUs of this process, found on first use and split into logical devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/device.h"

namespace tutti {

class DeviceBackend;

/// Device gpu:<index>: one of `num_parts` equal parts of a GPU (tf's logical devices).
struct LogicalGpu {
  int index = 0;    // n in the name gpu:n
  int ordinal = 0;  // index among the GPUs that this process may use
  /// Index of the GPU in the machine; nullopt if CUDA_VISIBLE_DEVICES does not determine it.
  std::optional<int> physical;
  int part = 0, num_parts = 1;
  std::int64_t memory_limit = 0;  // bytes
  PhysicalDevice properties;
};

/// Number of logical devices per GPU, and memory limit of each logical device in bytes (0: an equal
/// share of the free memory). Corresponds to tf.config.set_logical_device_configuration.
struct VirtualGpus {
  int per_gpu = 1;
  std::int64_t memory_limit = 0;
};

/// Parses "4" (parts per GPU) or "4:512" (parts per GPU and MiB per part). Throws kInvalidArgument,
/// naming `who`, for other text.
VirtualGpus parse_virtual_gpus(std::string_view who, const std::string& text);

/// Sets how all GPUs of this process are split. The default is the environment variable
/// TUTTI_VIRTUAL_GPUS ("4", or "4:512" with the MiB per part). Throws kFailedPrecondition if the
/// GPUs are already in use, and kInvalidArgument unless per_gpu is 1 to 64 and the limit is >= 0.
void set_virtual_gpus(const VirtualGpus& virtual_gpus);

/// Returns the logical devices of all GPUs; empty if there are none (see gpu_unavailable_reason()).
/// The first call searches for the GPU driver and tutti's GPU module, and logs the result. The
/// environment variable TUTTI_CUDA controls the search: auto (default), off (no search), require
/// (throws kUnavailable if there are no GPUs). Thread-safe.
const std::vector<LogicalGpu>& logical_gpus();
/// Returns one line with the reason why there are no GPUs, and the remedy; empty if there are GPUs.
const std::string& gpu_unavailable_reason();

/// Description, for reports, of the module that provides the GPUs.
struct GpuModule {
  std::string path;         // path of the module's file; empty if none was opened
  std::string description;  // "CUDA 13.0, ..."; empty if it found no GPUs
  bool is_simulated = false;
  std::vector<std::string> missing;  // CUDA libraries that it needs but that were not found
};
/// Returns the module; searches for GPUs first, like logical_gpus(). Thread-safe.
const GpuModule& gpu_module();

/// Returns the backend of the GPUs; nullptr if there are none.
DeviceBackend* gpu_backend();

}  // namespace tutti
