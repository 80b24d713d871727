// Computing devices of this process and of other tasks, and the physical GPUs of the machine.
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

// Names of the computing devices of this process.

/// Kind of a computing device. kXla: TPUs and other devices of an XLA plugin (docs/tpu.md). XLA
/// devices run whole steps of strategies; tensors and device scopes cannot be placed on them.
enum class DeviceType { kCpu = 0, kGpu = 1, kXla = 2 };

std::string_view to_string(DeviceType type);  // "cpu", "gpu", "xla"

/// Name of one computing device of this process. A plain value: copy, compare, print, use as a key.
/// cpu:0 ... cpu:63 are virtual devices of the one host (tf's logical devices), so that every
/// strategy runs on a laptop.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  /// Parses "cpu:0", "CPU:0", "gpu:1", "/gpu:1", "/device:GPU:1", "xla:0" and its synonym "tpu:0".
  /// Throws kInvalidArgument naming the text if it cannot be parsed, and kUnavailable listing the
  /// devices of this build and machine if it has no such device. XLA devices are not looked up here
  /// but by the strategy that uses them, because that can take seconds.
  static Device parse(std::string_view spec);
  std::string to_string() const;
  auto operator<=>(const Device&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Device& device);

/// Number of virtual CPU devices, cpu:0 to cpu:63; names of XLA devices also end with xla:63.
inline constexpr int kNumVirtualCpuDevices = 64;

/// Throws kUnavailable unless this build and machine have the device, and kUnimplemented for an XLA
/// device, which only strategies can use.
void require_available(const Device& device);

/// Parses a comma-separated list with ranges: "cpu:0-3", "cpu:4", "gpu:0,gpu:2". Throws as
/// Device::parse(), and kInvalidArgument for an empty list or a duplicate.
std::vector<Device> parse_devices(std::string_view list);

/// Returns the device on which this thread creates tensors by default: the device of the innermost
/// DeviceScope (device_scope.h), or cpu:0. Throws kUnavailable in a scope of another process.
Device current_device();

/// Returns all usable GPUs, or cpu:0 if there are none: the default devices of strategies.
std::vector<Device> default_devices();

// A device name with job, replica and task, each optional: tf's DeviceSpec.

/// Device specification: "/job:worker/replica:0/task:1/device:GPU:0", or some of its parts. It need
/// not exist. A task's own prefix is Task::device_prefix() (tutti/cluster/cluster_spec.h). A plain
/// value: tf's replace() is an assignment to a copy's member.
struct DeviceSpec {
  std::optional<std::string> job = {};
  std::optional<int> replica = {};
  std::optional<int> task = {};
  std::optional<DeviceType> type = {};
  std::optional<int> index = {};

  /// Parses a specification; the older form "/gpu:0" is accepted too. Throws kInvalidArgument
  /// naming the text, the part that cannot be parsed, and why.
  static DeviceSpec parse(std::string_view text);
  /// Returns this spec, with the parts that `inner` (a nested device scope) sets taken from
  /// `inner`: tf's make_merged_spec().
  DeviceSpec merged_with(const DeviceSpec& inner) const;
  std::string to_string() const;
  bool operator==(const DeviceSpec&) const = default;
};

/// Returns the device of this process that `spec` names; a missing type means CPU, a missing index
/// 0. Throws as require_available().
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
