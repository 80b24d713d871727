// Computing devices: those of this process, those of other tasks, and GPUs as machines have them.
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

/// What kind of device computes. kXla: TPUs, or what else a plugin of XLA has (docs/tpu.md). They
/// compute whole steps of strategies; tensors and scopes are not theirs.
enum class DeviceType { kCpu = 0, kGpu = 1, kXla = 2 };

std::string_view to_string(DeviceType type);  // "cpu", "gpu", "xla"

/// Names one computing device of this process. A plain value: copy, compare, print, use as a key.
/// cpu:0 ... cpu:63 are virtual devices of the one host (tf's logical devices), so that every
/// strategy runs on a laptop.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  /// Accepts "cpu:0", "CPU:0", "gpu:1", "/gpu:1", "/device:GPU:1" and "xla:0", which "tpu:0" means
  /// too. Throws kInvalidArgument naming the spec when it cannot be read; kUnavailable when this
  /// build or machine has no such device, listing those that it has. The strategy that takes xla:0
  /// sees whether it is there: that can take seconds.
  static Device parse(std::string_view spec);
  std::string to_string() const;
  auto operator<=>(const Device&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Device& device);

/// cpu:0 to cpu:63; names of XLA's devices end with xla:63, too.
inline constexpr int kNumVirtualCpuDevices = 64;

/// Throws kUnavailable unless this build and machine have the device, and kUnimplemented for one of
/// XLA, which is for strategies alone.
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

// A device name with job, replica and task, each optional: tf's DeviceSpec.

/// "/job:worker/replica:0/task:1/device:GPU:0", or some of its parts; a task's own prefix is
/// Task::device_prefix() (tutti/cluster/cluster_spec.h). Never checks that the device exists. A
/// plain value: tf's replace() is an assignment to a copy's member.
struct DeviceSpec {
  std::optional<std::string> job = {};
  std::optional<int> replica = {};
  std::optional<int> task = {};
  std::optional<DeviceType> type = {};
  std::optional<int> index = {};

  /// Also the older "/gpu:0". Throws kInvalidArgument naming the text, the part that cannot be read
  /// and why.
  static DeviceSpec parse(std::string_view text);
  /// This spec with the parts that `inner` has replaced by inner's (a nested device scope): tf's
  /// make_merged_spec().
  DeviceSpec merged_with(const DeviceSpec& inner) const;
  std::string to_string() const;
  bool operator==(const DeviceSpec&) const = default;
};

/// The device of this process that `spec` names (missing parts: cpu, index 0). Throws kUnavailable
/// with the list of devices here.
Device resolve(const DeviceSpec& spec);

// A GPU as the machine has it.

/// One GPU of the machine, as the log and `tutti devices` name it. Memory in bytes.
struct PhysicalDevice {
  std::string name;  // "NVIDIA H200"
  int major = 0, minor = 0;
  double memory_clock_ghz = 0.0;
  std::string pci_bus_id;  // "0000:02:00.0"
  std::int64_t total_bytes = 0, free_bytes = 0;
  int num_multiprocessors = 0;
};

}  // namespace tutti
