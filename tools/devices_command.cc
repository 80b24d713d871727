// `tutti devices`: lists the devices of this machine.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tensor/device_backend.h"
#include "tensor/gpu/inventory.h"
#include "tools/commands.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tensor/xla/xla_devices.h"

namespace tutti::tools {
namespace {

double to_gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::string virtual_cpu_devices() { return concat("cpu:0-", kNumVirtualCpuDevices - 1); }

Json cpu_to_json(const Machine& machine) {
  Json cpu = Json::object();
  cpu.set("type", to_string(DeviceType::kCpu)).set("model", machine.cpu_model);
  cpu.set("cores", machine.num_cores).set("memory_bytes", machine.memory_bytes);
  cpu.set("devices", virtual_cpu_devices()).set("num_devices", kNumVirtualCpuDevices);
  return cpu;
}

Json gpu_to_json(const LogicalGpu& gpu) {
  const PhysicalDevice& device = gpu.properties;
  Json entry = Json::object();
  entry.set("type", to_string(DeviceType::kGpu)).set("device", concat("gpu:", gpu.index));
  entry.set("ordinal", gpu.ordinal);
  entry.set("physical", gpu.physical ? Json(*gpu.physical) : Json());
  entry.set("part", gpu.part).set("num_parts", gpu.num_parts);
  entry.set("memory_limit_bytes", gpu.memory_limit).set("name", device.name);
  entry.set("compute_capability", concat(device.major, ".", device.minor));
  entry.set("multiprocessors", device.num_multiprocessors);
  entry.set("memory_clock_ghz", device.memory_clock_ghz).set("pci_bus_id", device.pci_bus_id);
  entry.set("total_bytes", device.total_bytes).set("free_bytes", device.free_bytes);
  return entry;
}

/// Returns a matrix [from][to] that is true if GPU `from` can access the memory of GPU `to`.
Json peers_to_json(const DeviceBackend& backend) {
  Json rows = Json::array();
  for (int from = 0; from < backend.num_devices(); ++from) {
    Json row = Json::array();
    for (int to = 0; to < backend.num_devices(); ++to) {
      row.push_back(backend.can_access_peer(from, to));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Returns the XLA devices' names, such as "xla:0-7", or "" if there are none.
std::string xla_device_names(const XlaDevices& devices) {
  return devices.count == 0 ? "" : concat("xla:0-", devices.count - 1);
}

Json xla_to_json() {
  const XlaDevices& devices = xla_devices();
  Json xla = Json::object();
  xla.set("available", devices.count > 0).set("reason", devices.why_none);
  xla.set("platform", devices.platform).set("devices", xla_device_names(devices));
  xla.set("num_devices", devices.count);
  xla.set("plugin", devices.plugin).set("version", devices.version);
  return xla;
}

void print_json(const Machine& machine) {
  Json devices = Json::array(), gpu = Json::object();
  devices.push_back(cpu_to_json(machine));
  for (const LogicalGpu& logical : logical_gpus()) devices.push_back(gpu_to_json(logical));
  gpu.set("available", !logical_gpus().empty()).set("reason", gpu_unavailable_reason());
  if (const DeviceBackend* const backend = gpu_backend()) {
    gpu.set("description", gpu_module().description).set("simulated", gpu_module().is_simulated);
    gpu.set("peer_access", peers_to_json(*backend));
  }
  Json report = Json::object();
  report.set("devices", std::move(devices));
  report.set("default_devices", join(default_devices(), ",")).set("gpu", std::move(gpu));
  report.set("xla", xla_to_json());
  print(report);
}

void print_gpus() {
  if (logical_gpus().empty()) {
    std::printf("gpu   none: %s\n", gpu_unavailable_reason().c_str());
    return;
  }
  std::printf("gpu   %s\n", gpu_module().description.c_str());
  for (const std::string& line : describe(*gpu_backend(), logical_gpus())) {
    std::printf("      %s\n", line.c_str());
  }
}

void print_xla() {
  const XlaDevices& devices = xla_devices();
  if (devices.count == 0) {
    std::printf("xla   none: %s\n", devices.why_none.c_str());
    return;
  }
  std::printf(
      "xla   %s by PJRT %s: %s\n      %s: steps of MirroredStrategy, OneDeviceStrategy, "
      "TpuStrategy\n",
      devices.platform.c_str(), devices.version.c_str(), devices.plugin.c_str(),
      xla_device_names(devices).c_str());
}

}  // namespace

int devices_command(OutputFormat format, const std::string& virtual_gpus) {
  set_log_level(LogLevel::kError);  // the report below contains the log's messages
  if (!virtual_gpus.empty()) {
    set_virtual_gpus(parse_virtual_gpus("--virtual-gpus", virtual_gpus));
  }
  const Machine machine = inspect_machine();
  if (format == OutputFormat::kJson) {
    print_json(machine);
    return 0;
  }
  std::printf("cpu   %s, %d core%s, %.1f GiB\n", machine.cpu_model.c_str(), machine.num_cores,
              machine.num_cores == 1 ? "" : "s", to_gib(machine.memory_bytes));
  std::printf("      %s: virtual devices, which share these cores\n",
              virtual_cpu_devices().c_str());
  print_gpus();
  print_xla();
  std::printf("A strategy without named devices uses %s.\n", join(default_devices()).c_str());
  return 0;
}

}  // namespace tutti::tools
