// Bytes of variables on each device: as they are, and as other placements would have them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Variables that are counted together: "parameters", "optimizer slots".
struct VariableGroup {
  std::string name;
  std::vector<Variable> variables;
};

/// Where variables with one value for all replicas are: on the first computing device, in the
/// host's memory (cpu:0), or on each computing device. CentralStorageStrategy does the first two,
/// MirroredStrategy the third.
enum class VariablePolicy { kFirstDevice, kCpu, kMirrored };
/// "first device", "cpu", "mirrored".
std::string_view to_string(VariablePolicy policy);

/// Bytes on one device, by group in the order in which groups were given.
struct DeviceBytes {
  Device device;
  std::vector<std::uint64_t> bytes;
  std::uint64_t total() const;
};

/// Where the components of these variables are now: of `replica_devices`, each once in that order
/// whatever it holds, then of other devices that hold something. What a step copies or makes on the
/// way is not counted, nor what other processes hold.
std::vector<DeviceBytes> memory_by_device(std::span<const VariableGroup> groups,
                                          std::span<const Device> replica_devices);

/// Where they would be under `policy` with these replicas. ON_READ variables have a component for
/// each replica under every policy; those for the host (VariableOptions::on_host) stay on cpu:0
/// where replicas are on GPUs.
std::vector<DeviceBytes> memory_under(VariablePolicy policy, std::span<const VariableGroup> groups,
                                      std::span<const Device> replica_devices);

/// The table of all three policies, a line for each device of each, and of the variables as they
/// are: ends in a newline.
std::string memory_report(std::span<const VariableGroup> groups,
                          std::span<const Device> replica_devices);

}  // namespace tutti
