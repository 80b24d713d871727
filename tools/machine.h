// What the machine offers: processor and memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::tools {

struct Machine {
  std::string cpu_model;
  int num_cores = 1;  // that this process may use
  std::int64_t memory_bytes = 0;
  std::int64_t available_memory_bytes = 0;
  std::string best_isa;                // the widest vector instructions: "AVX-512", "AVX2", ...
  std::vector<std::string> isa_flags;  // those that matter for speed, as the kernel calls them
};

/// Reads /proc. What cannot be read stays at its default.
Machine inspect_machine();

}  // namespace tutti::tools
