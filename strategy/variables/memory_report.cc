// Implements reports of the memory use of variables, by device and group.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/variables/memory_report.h"

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>

#include "tutti/core/error.h"

namespace tutti {
namespace {

/// Rows of a report, one per device, in order of first use.
class Sums {
 public:
  Sums(std::size_t num_groups, std::span<const Device> devices) : num_groups_(num_groups) {
    for (const Device& device : devices) (void)row_of(device);
  }

  void add(Device device, std::size_t group, std::uint64_t bytes) {
    row_of(device).bytes[group] += bytes;
  }
  std::vector<DeviceBytes> take() { return std::move(rows_); }

 private:
  DeviceBytes& row_of(const Device& device) {
    const auto found = std::ranges::find(rows_, device, &DeviceBytes::device);
    if (found != rows_.end()) return *found;
    return rows_.emplace_back(DeviceBytes{device, std::vector<std::uint64_t>(num_groups_, 0)});
  }

  std::size_t num_groups_;
  std::vector<DeviceBytes> rows_;
};

std::vector<Device> unique(std::span<const Device> devices) {
  std::vector<Device> once;
  for (const Device& device : devices) {
    if (std::ranges::find(once, device) == once.end()) once.push_back(device);
  }
  return once;
}

/// Returns the devices of a variable's components under `policy`.
std::vector<Device> devices_under(VariablePolicy policy, const VariableOptions& options,
                                  std::span<const Device> replicas) {
  const auto is_gpu = [](const Device& device) { return device.type == DeviceType::kGpu; };
  if (options.synchronization == VariableSynchronization::kOnRead) {
    return {replicas.begin(), replicas.end()};
  }
  if (options.on_host && std::ranges::any_of(replicas, is_gpu)) return {Device{}};
  switch (policy) {
    case VariablePolicy::kFirstDevice:
      return {replicas.front()};
    case VariablePolicy::kCpu:
      return {Device{}};
    case VariablePolicy::kMirrored:
      break;
  }
  return unique(replicas);
}

void require_replicas(std::span<const Device> replica_devices) {
  if (!replica_devices.empty()) return;
  fail(ErrorCode::kInvalidArgument,
       "memory report: expected at least one replica device, got none");
}

/// Returns e.g. "4,273,192".
std::string with_commas(std::uint64_t number) {
  std::string text = concat(number);
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return text;
}

constexpr int kNameWidth = 14, kDeviceWidth = 8, kLeastWidth = 15;

int width_of(const VariableGroup& group) {
  return std::max(kLeastWidth, static_cast<int>(group.name.size()) + 2);
}

void write_rows(std::ostream& out, std::string_view name, std::span<const VariableGroup> groups,
                const std::vector<DeviceBytes>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out << std::left << std::setw(kNameWidth) << (i == 0 ? name : "") << std::setw(kDeviceWidth)
        << rows[i].device.to_string() << std::right;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      out << std::setw(width_of(groups[g])) << with_commas(rows[i].bytes[g]);
    }
    out << std::setw(kLeastWidth) << with_commas(rows[i].total()) << '\n';
  }
}

}  // namespace

std::string_view to_string(VariablePolicy policy) {
  switch (policy) {
    case VariablePolicy::kFirstDevice:
      return "first device";
    case VariablePolicy::kCpu:
      return "cpu";
    case VariablePolicy::kMirrored:
      return "mirrored";
  }
  return "?";
}

std::uint64_t DeviceBytes::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

std::vector<DeviceBytes> memory_by_device(std::span<const VariableGroup> groups,
                                          std::span<const Device> replica_devices) {
  require_replicas(replica_devices);
  Sums sums(groups.size(), replica_devices);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Variable& variable : groups[g].variables) {
      for (const Tensor& component : variable.storage().local_components()) {
        sums.add(component.device(), g, component.num_bytes());
      }
    }
  }
  return sums.take();
}

std::vector<DeviceBytes> memory_under(VariablePolicy policy, std::span<const VariableGroup> groups,
                                      std::span<const Device> replica_devices) {
  require_replicas(replica_devices);
  Sums sums(groups.size(), replica_devices);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Variable& variable : groups[g].variables) {
      const auto bytes =
          static_cast<std::uint64_t>(variable.shape().num_elements()) * size_of(variable.dtype());
      for (const Device& device :
           devices_under(policy, variable.storage().options(), replica_devices)) {
        sums.add(device, g, bytes);
      }
    }
  }
  return sums.take();
}

std::string memory_report(std::span<const VariableGroup> groups,
                          std::span<const Device> replica_devices) {
  std::ostringstream out;
  out << std::left << std::setw(kNameWidth) << "bytes" << std::setw(kDeviceWidth) << "device"
      << std::right;
  for (const VariableGroup& group : groups) out << std::setw(width_of(group)) << group.name;
  out << std::setw(kLeastWidth) << "total" << '\n';
  for (const VariablePolicy policy :
       {VariablePolicy::kFirstDevice, VariablePolicy::kCpu, VariablePolicy::kMirrored}) {
    write_rows(out, to_string(policy), groups, memory_under(policy, groups, replica_devices));
  }
  write_rows(out, "as it is", groups, memory_by_device(groups, replica_devices));
  return out.str();
}

}  // namespace tutti
