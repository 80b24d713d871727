// Splits GPUs, and writes the lines of the log about them.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/inventory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <sstream>

#include "tensor/device_backend.h"
#include "tutti/core/error.h"

namespace tutti {

// CUDA's rules for CUDA_VISIBLE_DEVICES.

std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices) {
  std::vector<int> indices;
  if (!mask) {
    indices.resize(static_cast<std::size_t>(num_devices));
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }
  if (mask->starts_with("GPU-") || mask->starts_with("MIG-")) return {};
  std::istringstream entries(*mask);
  for (std::string entry; std::getline(entries, entry, ',');) {
    // CUDA reads as strtol does: blanks in front and what follows the digits do not count.
    char* end = nullptr;
    const long index = std::strtol(entry.c_str(), &end, 10);
    if (end == entry.c_str() || index < 0 || index >= num_devices) break;
    const int found = static_cast<int>(index);
    if (std::find(indices.begin(), indices.end(), found) != indices.end()) {
      return std::vector<int>();
    }
    indices.push_back(found);
  }
  return indices;
}

namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr int kMaxParts = 64;

std::int64_t parse_number(std::string_view who, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::kInvalidArgument, who,
         ": expected a number such as 4, or 4:512 with MiB each, ", "got '", text, "'");
  }
  return value;
}

std::string decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string gib(std::int64_t bytes) {
  return decimal(static_cast<double>(bytes) / static_cast<double>(kMebibyte << 10), 2) + " GiB";
}

/// What each part may take.
std::int64_t limit_of(const PhysicalDevice& device, int ordinal, const VirtualGpus& wanted) {
  const std::int64_t share = device.free_bytes / wanted.per_gpu / kMebibyte * kMebibyte;
  if (wanted.memory_limit == 0) return share;
  if (wanted.memory_limit > device.total_bytes / wanted.per_gpu) {
    fail(ErrorCode::kInvalidArgument, "virtual GPUs: ", wanted.per_gpu, " parts of ",
         wanted.memory_limit / kMebibyte, " MiB each; expected at most ",
         device.total_bytes / kMebibyte, " MiB together, which is what GPU ", ordinal, " (",
         device.name, ") has; try smaller parts");
  }
  return wanted.memory_limit;
}

}  // namespace

void check_virtual_gpus(std::string_view who, const VirtualGpus& virtual_gpus) {
  if (virtual_gpus.per_gpu < 1 || virtual_gpus.per_gpu > kMaxParts) {
    fail(ErrorCode::kInvalidArgument, who, ": expected 1 to ", kMaxParts,
         " parts of each GPU, got ", virtual_gpus.per_gpu);
  }
  if (virtual_gpus.memory_limit < 0) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a memory limit of 1 MiB or more, got ",
         virtual_gpus.memory_limit, " bytes");
  }
}

VirtualGpus parse_virtual_gpus(std::string_view who, const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::int64_t parts = parse_number(who, std::string_view(text).substr(0, colon));
  VirtualGpus wanted;
  wanted.per_gpu = static_cast<int>(std::clamp<std::int64_t>(parts, std::numeric_limits<int>::min(),
                                                             std::numeric_limits<int>::max()));
  if (colon != std::string::npos) {
    const std::int64_t mebibytes = parse_number(who, std::string_view(text).substr(colon + 1));
    if (mebibytes < 1 || mebibytes > std::numeric_limits<std::int64_t>::max() / kMebibyte) {
      fail(ErrorCode::kInvalidArgument, who, ": expected a memory limit of 1 MiB or more, got ",
           mebibytes, " MiB");
    }
    wanted.memory_limit = mebibytes * kMebibyte;
  }
  check_virtual_gpus(who, wanted);
  return wanted;
}

std::vector<LogicalGpu> split_gpus(const DeviceBackend& backend,
                                   const std::optional<std::string>& mask,
                                   const VirtualGpus& virtual_gpus) {
  const int num_devices = backend.num_devices();
  // How many GPUs the machine has is unknown here: the backend shows only those that are visible.
  const auto physical = visible_devices(mask, mask ? std::numeric_limits<int>::max() : num_devices);
  std::vector<LogicalGpu> gpus;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    LogicalGpu gpu;
    gpu.ordinal = ordinal;
    const auto place = static_cast<std::size_t>(ordinal);
    if (physical && place < physical->size()) gpu.physical = (*physical)[place];
    gpu.num_parts = virtual_gpus.per_gpu;
    gpu.properties = backend.inspect(ordinal);
    gpu.memory_limit = limit_of(gpu.properties, ordinal, virtual_gpus);
    for (gpu.part = 0; gpu.part < gpu.num_parts; ++gpu.part) {
      gpu.index = static_cast<int>(gpus.size());
      gpus.push_back(gpu);
    }
  }
  return gpus;
}

std::string describe(const PhysicalDevice& device, int ordinal) {
  return concat("Found device ", ordinal, " with properties: name: ", device.name,
                ", compute capability: ", device.major, ".", device.minor,
                ", memory clock: ", decimal(device.memory_clock_ghz, 3),
                " GHz, PCI bus id: ", device.pci_bus_id,
                ", total memory: ", gib(device.total_bytes),
                ", free memory: ", gib(device.free_bytes));
}

std::string describe(const LogicalGpu& gpu) {
  std::string line = concat("Created gpu:", gpu.index, " -> (device: ", gpu.ordinal);
  if (gpu.physical && *gpu.physical != gpu.ordinal) {
    line += concat(", GPU ", *gpu.physical, " of this machine");
  }
  line += concat(", name: ", gpu.properties.name, ", PCI bus id: ", gpu.properties.pci_bus_id);
  if (gpu.num_parts > 1) line += concat(", part ", gpu.part + 1, " of ", gpu.num_parts);
  return concat(line, ", memory limit: ", gib(gpu.memory_limit), ")");
}

std::vector<std::string> describe_peers(const DeviceBackend& backend) {
  const int num_devices = backend.num_devices();
  std::string columns = "DMA:";
  for (int to = 0; to < num_devices; ++to) columns += concat(" ", to);
  std::vector<std::string> lines{columns};
  for (int from = 0; from < num_devices; ++from) {
    std::string line = concat(from, ":");
    line.resize(std::max(line.size(), std::string_view("DMA:").size()), ' ');
    for (int to = 0; to < num_devices; ++to) {
      const std::size_t width = concat(to).size();
      line += concat(std::string(width, ' '), backend.can_access_peer(from, to) ? "Y" : "N");
    }
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> describe(const DeviceBackend& backend, std::span<const LogicalGpu> gpus) {
  std::vector<std::string> lines;
  for (const LogicalGpu& gpu : gpus) {
    if (gpu.part == 0) lines.push_back(describe(gpu.properties, gpu.ordinal));
  }
  for (std::string& line : describe_peers(backend)) lines.push_back(std::move(line));
  for (const LogicalGpu& gpu : gpus) lines.push_back(describe(gpu));
  return lines;
}

}  // namespace tutti
