// Names of the computing devices of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

enum class DeviceType { kCpu = 0, kGpu = 1 };

std::string_view to_string(DeviceType type);  // "cpu", "gpu"

/// Names one computing device of this process. A plain value: copy, compare, print, use as a key.
/// cpu:0 ... cpu:63 are virtual devices of the one host (tf's logical devices), so that every
/// strategy runs on a laptop.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  /// Accepts "cpu:0", "CPU:0", "gpu:1", "/gpu:1" and "/device:GPU:1".
  /// Throws kInvalidArgument naming the spec when it cannot be read; kUnavailable when this build
  /// or machine has no such device, listing those that it has.
  static Device parse(std::string_view spec);
  std::string to_string() const;
  auto operator<=>(const Device&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Device& device);

inline constexpr int kNumVirtualCpuDevices = 64;

/// Throws kUnavailable unless this build and machine have the device.
void require_available(const Device& device);

/// Reads a comma-separated list with ranges: "cpu:0-3", "cpu:4", "gpu:0,gpu:2". Duplicates and
/// empty lists are errors.
std::vector<Device> parse_devices(std::string_view list);

/// Where this thread makes tensors that name no device: cpu:0, or the device of the innermost
/// DeviceScope (device_scope.h). Throws kUnavailable in a scope of another process.
Device current_device();

/// Every GPU this build can use, or cpu:0 when there is none: what strategies take when no devices
/// are named.
std::vector<Device> default_devices();

}  // namespace tutti
