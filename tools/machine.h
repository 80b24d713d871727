// What the machine offers: processor, memory, data sets.
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

/// Folder with the four files of Fashion-MNIST, or empty: `data_dir`, or the usual ones when that
/// is empty.
std::string find_fashion_mnist(const std::string& data_dir);

/// Path of a program in one of the folders of PATH, or empty.
std::string find_program(const std::string& name);

}  // namespace tutti::tools
