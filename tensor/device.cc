// Names and specifications of computing devices.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "core/names.h"
#include "tensor/gpu_device.h"
#include "tutti/core/error.h"

namespace tutti {

// Parsing and printing of device names.

namespace {

std::optional<int> parse_index(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : internal::parse_number<int>(text);
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

/// Same as require_available(), but accepts XLA devices without looking them up, because strategies
/// do that.
void require_name(const Device& device) {
  const bool is_xla = device.type == DeviceType::kXla;
  if (!is_xla || device.index < 0 || device.index >= kNumVirtualCpuDevices) {
    require_available(device);
  }
}

/// Appends one entry of a list, "cpu:0" or "cpu:0-3", to `devices`.
void parse_range(std::string_view list, std::string_view entry, std::vector<Device>& devices) {
  const std::size_t dash = entry.rfind('-');
  const Device first = Device::parse(entry.substr(0, dash));
  Device last = first;
  if (dash != std::string_view::npos) {
    const std::optional<int> index = parse_index(entry.substr(dash + 1));
    if (!index || *index < first.index) fail_list(list, "a range must end at or after its start");
    last.index = *index;
    require_name(last);
  }
  for (Device device = first; device.index <= last.index; ++device.index) {
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      fail_list(list, device.to_string() + " is listed twice");
    }
    devices.push_back(device);
  }
}

}  // namespace

std::string_view to_string(DeviceType type) {
  constexpr std::string_view kNames[] = {"cpu", "gpu", "xla"};
  return kNames[static_cast<std::size_t>(type)];
}

Device Device::parse(std::string_view text) {
  std::optional<DeviceSpec> spec;
  try {
    spec = DeviceSpec::parse(text.starts_with('/') ? std::string(text) : "/" + std::string(text));
  } catch (const Error&) {  // the error below lists the accepted device names
  }
  if (!spec || spec->job || spec->replica || spec->task || !spec->type || !spec->index) {
    fail(ErrorCode::kInvalidArgument,
         "Device::parse: cannot read a device name; expected 'cpu:0', 'gpu:0', 'xla:0' or "
         "'/device:GPU:1', got '",
         one_line(text), "'");
  }
  const Device device{*spec->type, *spec->index};
  require_name(device);
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
  if (device.type == DeviceType::kXla && device.index < kNumVirtualCpuDevices) {
    fail(ErrorCode::kUnimplemented, device, ": XLA runs only whole steps of MirroredStrategy, ",
         "OneDeviceStrategy and TpuStrategy; expected a CPU or a GPU; use MirroredStrategy(\"",
         device, "\"), or cpu:0");
  }
  if (GpuDevice::opened(device)) return;
  const int num_gpus = GpuDevice::count();
  if (device.type == DeviceType::kGpu && device.index >= 0 && device.index < num_gpus) return;
  const std::string gpus = num_gpus > 0 ? concat(", gpu:0 ... gpu:", num_gpus - 1) : std::string();
  fail(ErrorCode::kUnavailable, device, " is unavailable: ",
       device.type == DeviceType::kGpu && num_gpus == 0 ? GpuDevice::why_none() : "no such device",
       "; available devices: cpu:0 ... ", kLast, " (virtual)", gpus);
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
  for (int i = 0, n = GpuDevice::count(); i < n; ++i) devices.push_back({DeviceType::kGpu, i});
  if (devices.empty()) devices.push_back(Device{});
  return devices;
}

// Parsing, merging and printing of device specifications.

namespace {

[[noreturn]] void fail_part(std::string_view text, std::string_view part,
                            std::string_view reason = "no such part") {
  fail(ErrorCode::kInvalidArgument, "DeviceSpec::parse: cannot read '", one_line(part), "' in '",
       one_line(text), "': ", reason,
       "; expected parts of /job:<name>/replica:<n>/task:<n>/device:<CPU|GPU|XLA>:<n>");
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

std::optional<DeviceType> find_type(const std::string& name) {
  if (name == "cpu") return DeviceType::kCpu;
  if (name == "gpu" || name == "cuda") return DeviceType::kGpu;
  if (name == "xla" || name == "tpu") return DeviceType::kXla;
  return std::nullopt;
}

std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Parser for one specification; `part_` is the part being parsed, for error messages.
class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : text_(text) {}

  DeviceSpec parse() {
    if (text_.empty() || text_ == "/") return spec_;
    if (text_.front() != '/') fail_part(text_, text_, "no '/' in front");
    for (std::string_view part : split_text(text_.substr(1), '/')) parse_part(part);
    return spec_;
  }

 private:
  void parse_part(std::string_view part) {
    part_ = part;
    std::vector<std::string_view> words = split_text(part, ':');
    const std::string key = internal::lower_case(words[0]);
    if (find_type(key)) {
      words.insert(words.begin(), "device");
    } else if (key != "device" && words.size() != 2) {
      fail_part(text_, part);
    }
    if (key == "job") {
      if (words[1].empty()) fail_part(text_, part, "no name");
      set(spec_.job, std::optional<std::string>(words[1]));
    } else if (key == "replica") {
      set(spec_.replica, number(words[1]));
    } else if (key == "task") {
      set(spec_.task, number(words[1]));
    } else if (words[0] == "device" || key == "device") {
      parse_device(words);
    } else {
      fail_part(text_, part);
    }
  }

  /// Parses {"device", type, index}, in which the index may be missing.
  void parse_device(const std::vector<std::string_view>& words) {
    if (words.size() < 2 || words.size() > 3) fail_part(text_, part_);
    const std::optional<DeviceType> type = find_type(internal::lower_case(words[1]));
    if (!type) fail_part(text_, part_, "the type is not one of CPU, GPU, XLA and TPU");
    set(spec_.type, type);
    if (words.size() == 3) set(spec_.index, number(words[2]));
  }

  /// Parses a number; returns nullopt for "*", which means the same as a missing part.
  std::optional<int> number(std::string_view word) const {
    if (word == "*") return std::nullopt;
    const auto value = internal::parse_number<int>(word);
    if (!value || *value < 0) fail_part(text_, part_, "neither a whole number >= 0 nor *");
    return value;
  }

  template <class T>
  void set(std::optional<T>& member, std::optional<T> value) const {
    if (member) fail_part(text_, part_, "it is listed twice");
    member = std::move(value);
  }

  std::string_view text_;
  std::string_view part_;
  DeviceSpec spec_;
};

}  // namespace

DeviceSpec DeviceSpec::parse(std::string_view text) { return SpecParser(text).parse(); }

DeviceSpec DeviceSpec::merged_with(const DeviceSpec& inner) const {
  DeviceSpec merged = *this;
  if (inner.job) merged.job = inner.job;
  if (inner.replica) merged.replica = inner.replica;
  if (inner.task) merged.task = inner.task;
  if (inner.type) merged.type = inner.type;
  if (inner.index) merged.index = inner.index;
  return merged;
}

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) text += "/job:" + *job;
  if (replica) text += concat("/replica:", *replica);
  if (task) text += concat("/task:", *task);
  if (!type) return text;  // an index alone does not identify a device
  text += concat("/device:", upper(tutti::to_string(*type)), ":");
  return text + (index ? concat(*index) : "*");
}

Device resolve(const DeviceSpec& spec) {
  const Device device{spec.type.value_or(DeviceType::kCpu), spec.index.value_or(0)};
  require_available(device);
  return device;
}

}  // namespace tutti
