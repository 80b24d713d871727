// Reading and printing device names.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/one_line.h"
#include "tutti/tensor/device_spec.h"
#include "tutti/tensor/gpu/gpu_device.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

std::optional<int> parse_index(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text[0] == '-') return {};
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

[[noreturn]] void fail_list(std::string_view list, std::string_view reason) {
  fail(ErrorCode::kInvalidArgument, "parse_devices: cannot read '", one_line(list), "': ", reason,
       "; expected a list such as 'cpu:0-3' or 'gpu:0,gpu:2'");
}

/// One entry of a list, "cpu:0" or "cpu:0-3", appended to `devices`.
void parse_range(std::string_view list, std::string_view entry, std::vector<Device>& devices) {
  const std::size_t dash = entry.rfind('-');
  const Device first = Device::parse(entry.substr(0, dash));
  Device last = first;
  if (dash != std::string_view::npos) {
    const std::optional<int> index = parse_index(entry.substr(dash + 1));
    if (!index || *index < first.index) fail_list(list, "a range that is none");
    last.index = *index;
    require_available(last);
  }
  for (Device device = first; device.index <= last.index; ++device.index) {
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      fail_list(list, device.to_string() + " stands twice");
    }
    devices.push_back(device);
  }
}

}  // namespace

std::string_view to_string(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "gpu"; }

Device Device::parse(std::string_view text) {
  std::optional<DeviceSpec> spec;
  try {
    spec = DeviceSpec::parse(text.starts_with('/') ? std::string(text) : "/" + std::string(text));
  } catch (const Error&) {  // reported below, in terms of a device
  }
  if (!spec || spec->job || spec->replica || spec->task || !spec->type || !spec->index) {
    fail(ErrorCode::kInvalidArgument,
         "Device::parse: cannot read a device name; expected 'cpu:0' or '/device:GPU:1', got '",
         one_line(text), "'");
  }
  const Device device{*spec->type, *spec->index};
  require_available(device);
  return device;
}

std::string Device::to_string() const { return concat(tutti::to_string(type), ":", index); }

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << device.to_string();
}

void require_available(const Device& device) {
  constexpr Device kLast{DeviceType::kCpu, kNumVirtualCpuDevices - 1};
  if (device.type == DeviceType::kCpu && device.index >= 0 &&
      device.index < kNumVirtualCpuDevices) {
    return;
  }
  if (GpuDevice::opened(device)) return;
  const auto num_gpus = static_cast<int>(logical_gpus().size());
  if (device.type == DeviceType::kGpu && device.index >= 0 && device.index < num_gpus) return;
  const std::string gpus = num_gpus > 0 ? concat(", gpu:0 ... gpu:", num_gpus - 1) : std::string();
  fail(ErrorCode::kUnavailable, device, " is unavailable: ",
       device.type == DeviceType::kGpu && num_gpus == 0 ? gpu_unavailable_reason()
                                                        : "no such device",
       "; devices here: cpu:0 ... ", kLast, " (virtual)", gpus);
}

std::vector<Device> parse_devices(std::string_view list) {
  std::vector<Device> devices;
  for (std::string_view rest = list;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    if (entry.empty()) fail_list(list, "an entry is empty");
    parse_range(list, entry, devices);
    if (comma == std::string_view::npos) return devices;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<Device> default_devices() {
  std::vector<Device> devices;
  for (const LogicalGpu& gpu : logical_gpus()) devices.push_back({DeviceType::kGpu, gpu.index});
  if (devices.empty()) devices.push_back(Device{});
  return devices;
}

}  // namespace tutti
