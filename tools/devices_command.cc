// `tutti devices`: lists the devices of this machine.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tools/commands.h"
#include "tools/machine.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/tensor/device.h"

namespace tutti::tools {
namespace {

constexpr const char* kNoGpu = "this version has no GPU backend";

double to_gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void print_json(const Machine& machine, const std::string& virtual_devices) {
  Json cpu = Json::object();
  cpu.set("type", to_string(DeviceType::kCpu)).set("model", machine.cpu_model);
  cpu.set("cores", machine.num_cores).set("memory_bytes", machine.memory_bytes);
  cpu.set("devices", virtual_devices).set("num_devices", kNumVirtualCpuDevices);
  Json report = Json::object();
  report.set("devices", Json::Array{std::move(cpu)});
  report.set("default_devices", join(default_devices(), ","));
  report.set("gpu", Json::object().set("available", false).set("reason", kNoGpu));
  std::printf("%s\n", report.dump(2).c_str());
}

}  // namespace

int devices_command(OutputFormat format) {
  const Machine machine = inspect_machine();
  const std::string virtual_devices = concat("cpu:0-", kNumVirtualCpuDevices - 1);
  if (format == OutputFormat::kJson) {
    print_json(machine, virtual_devices);
    return 0;
  }
  std::printf("cpu   %s, %d core%s, %.1f GiB\n", machine.cpu_model.c_str(), machine.num_cores,
              machine.num_cores == 1 ? "" : "s", to_gib(machine.memory_bytes));
  std::printf("      %s: virtual devices, which share these cores\n", virtual_devices.c_str());
  std::printf("gpu   none: %s\n", kNoGpu);
  std::printf("A strategy without named devices uses %s.\n", join(default_devices()).c_str());
  return 0;
}

}  // namespace tutti::tools
