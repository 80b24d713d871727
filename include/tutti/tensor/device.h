// Names of computing devices in this process and in other tasks, and properties of physical GPUs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// Names of this process's compute devices.

/// Kind of computing device. kXla: TPUs and other devices of an XLA plugin (docs/tpu.md). XLA
/// devices run whole steps of strategies; tensors and device scopes cannot be placed on them.
enum class DeviceType { kCpu = 0, kGpu = 1, kXla = 2 };

std::string_view to_string(DeviceType type);  // "cpu", "gpu", "xla"

/// Name of one computing device of this process. A value type that can be compared, printed and
/// used as a key. cpu:0 ... cpu:63 are virtual devices of the host (tf's logical devices), so every
/// strategy can run on a laptop.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  /// Parses "cpu:0", "CPU:0", "gpu:1", "/gpu:1", "/device:GPU:1", "xla:0" and its synonym "tpu:0".
  /// Throws kInvalidArgument, quoting the text, if it cannot be parsed, and kUnavailable, listing
  /// all devices, if this build and machine have no such device. The existence of XLA devices is
  /// checked only by the strategy that uses them, because that can take seconds.
  static Device parse(std::string_view spec);
  std::string to_string() const;
  auto operator<=>(const Device&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Device& device);

/// Number of virtual CPU devices, which are cpu:0 to cpu:63. The last valid name of an XLA device
/// is xla:63.
inline constexpr int kNumVirtualCpuDevices = 64;

/// Checks that tensors can be placed on the device. Throws kUnavailable if this build or this
/// machine does not have it, and kUnimplemented for an XLA device, which only strategies can use.
void require_available(const Device& device);

/// Parses a comma-separated list with ranges: "cpu:0-3", "cpu:4", "gpu:0,gpu:2". Throws the same
/// errors as Device::parse(), and kInvalidArgument for an empty list or a duplicate.
std::vector<Device> parse_devices(std::string_view list);

/// Returns the device on which this thread creates tensors by default: the device of the innermost
/// DeviceScope (device_scope.h), or cpu:0. Throws kUnavailable if that scope names another process.
Device current_device();

/// Returns the default devices of strategies: all usable GPUs, or cpu:0 if there are none.
std::vector<Device> default_devices();

// A device name with an optional job, replica and task: tf's DeviceSpec.

/// Device specification with some or all parts of "/job:worker/replica:0/task:1/device:GPU:0". The
/// device need not exist. Task::device_prefix() (tutti/cluster/cluster_spec.h) returns the prefix
/// of a task. A value type; to replace a part (tf's replace()), assign to the member of a copy.
struct DeviceSpec {
  std::optional<std::string> job = {};
  std::optional<int> replica = {};
  std::optional<int> task = {};
  std::optional<DeviceType> type = {};
  std::optional<int> index = {};

  /// Parses a specification; also accepts the older form "/gpu:0". Throws kInvalidArgument, quoting
  /// the text and the part that cannot be parsed, with the reason.
  static DeviceSpec parse(std::string_view text);
  /// Returns a copy of this specification in which the fields that `inner` (a nested device scope)
  /// sets override those set here. Equivalent of tf's make_merged_spec().
  DeviceSpec merged_with(const DeviceSpec& inner) const;
  std::string to_string() const;
  bool operator==(const DeviceSpec&) const = default;
};

/// Returns the device of this process that `spec` names; the default type is CPU, and the default
/// index is 0. Throws the same errors as require_available().
Device resolve(const DeviceSpec& spec);

// Physical GPUs.

/// One GPU of the machine, as the log and `tutti devices` describe it. Memory in bytes.
struct PhysicalDevice {
  std::string name;  // "NVIDIA H200"
  int major = 0, minor = 0;
  double memory_clock_ghz = 0.0;
  std::string pci_bus_id;  // "0000:02:00.0"
  std::int64_t total_bytes = 0, free_bytes = 0;
  int num_multiprocessors = 0;
};

}  // namespace tutti
