// A GPU as the machine has it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

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
