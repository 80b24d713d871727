// The GPUs of this process: found at the first question, split into logical devices.
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
  int index = 0;    // n of gpu:n
  int ordinal = 0;  // of the GPU among those this process may use
  /// The GPU's number in the machine, as far as CUDA_VISIBLE_DEVICES tells.
  std::optional<int> physical;
  int part = 0, num_parts = 1;
  std::int64_t memory_limit = 0;  // bytes
  PhysicalDevice properties;
};

/// How many logical devices a GPU becomes, and how much memory each may take (0: equal shares of
/// what is free). tf.config.set_logical_device_configuration.
struct VirtualGpus {
  int per_gpu = 1;
  std::int64_t memory_limit = 0;
};

/// "4" or "4:512": parts of each GPU, and MiB of each part. Throws kInvalidArgument naming `who`.
VirtualGpus parse_virtual_gpus(std::string_view who, const std::string& text);

/// Takes effect for the whole process. Throws kFailedPrecondition once the GPUs are in use,
/// kInvalidArgument for numbers below 1. Otherwise the environment variable TUTTI_VIRTUAL_GPUS
/// ("4", or "4:512" with MiB each) counts.
void set_virtual_gpus(const VirtualGpus& virtual_gpus);

/// Empty when there is none: then gpu_unavailable_reason() says why. The first call looks for
/// driver and module and writes the log lines. Throws kUnavailable instead when the environment has
/// TUTTI_CUDA=require (default: auto; off: none are looked for). Any thread.
const std::vector<LogicalGpu>& logical_gpus();
/// One line: what is missing and what to do about it. Empty when there are GPUs.
const std::string& gpu_unavailable_reason();

/// The module behind the GPUs, for reports.
struct GpuModule {
  std::string path;         // empty: none was opened
  std::string description;  // "CUDA 13.0, ..."; empty: it found no GPUs
  bool is_simulated = false;
  std::vector<std::string> missing;  // CUDA libraries that it needs and that are not there
};
/// Looks for GPUs first, as logical_gpus() does. Any thread.
const GpuModule& gpu_module();

/// nullptr when there are no GPUs.
DeviceBackend* gpu_backend();

}  // namespace tutti
