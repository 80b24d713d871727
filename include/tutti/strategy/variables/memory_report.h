// Memory use of variables on each device, for their current placement and for alternatives.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Variables that are counted together, e.g. "parameters" or "optimizer slots".
struct VariableGroup {
  std::string name;
  std::vector<Variable> variables;
};

/// Placement of variables that have one value for all replicas: on the first computing device, in
/// host memory (cpu:0), or on each computing device. CentralStorageStrategy uses one of the first
/// two, MirroredStrategy the third.
enum class VariablePolicy { kFirstDevice, kCpu, kMirrored };
/// Returns "first device", "cpu" or "mirrored".
std::string_view to_string(VariablePolicy policy);

/// Bytes on one device, one number per group, in group order.
struct DeviceBytes {
  Device device;
  std::vector<std::uint64_t> bytes;
  std::uint64_t total() const;
};

/// Returns the bytes that the components of these variables occupy now. Lists each distinct device
/// of `replica_devices` in order, even if it stores no component, then the other devices that store
/// components. Temporaries of a step and the memory of other processes are not counted.
std::vector<DeviceBytes> memory_by_device(std::span<const VariableGroup> groups,
                                          std::span<const Device> replica_devices);

/// Returns the bytes that the variables would occupy under `policy` with these replicas. ON_READ
/// variables have one component per replica under every policy. Host variables
/// (VariableOptions::on_host) stay on cpu:0 if replicas are on GPUs.
std::vector<DeviceBytes> memory_under(VariablePolicy policy, std::span<const VariableGroup> groups,
                                      std::span<const Device> replica_devices);

/// Returns a table with a group of lines for each policy and one for the current placement. Each
/// group has one line per device. Ends in a newline.
std::string memory_report(std::span<const VariableGroup> groups,
                          std::span<const Device> replica_devices);

}  // namespace tutti
