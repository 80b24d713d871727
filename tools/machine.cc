// Reads /proc/cpuinfo and /proc/meminfo.
// SPDX-License-Identifier: Apache-2.0
#include "tools/machine.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "core/file.h"
#include "tutti/core/executor.h"

namespace tutti::tools {
namespace {

/// The text behind "name   :" in a file of such lines; empty when the name is not there.
std::string field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// Bytes of a /proc/meminfo line such as "MemTotal:  16384 kB".
std::int64_t memory_field(const std::string& text, const std::string& name) {
  return std::strtoll(field(text, name).c_str(), nullptr, 10) * 1024;
}

std::vector<std::string> known_flags(const std::string& flags) {
  static constexpr const char* kKnown[] = {
      "sse4_2",      "avx",         "f16c",        "fma",      "avx2",  "avx512f", "avx512bw",
      "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve"};
  std::istringstream words(flags);
  std::vector<std::string> found;
  for (std::string word; words >> word;) {
    if (std::find(std::begin(kKnown), std::end(kKnown), word) != std::end(kKnown)) {
      found.push_back(word);
    }
  }
  return found;
}

std::string best_isa(const std::vector<std::string>& flags) {
  static constexpr std::pair<const char*, const char*> kFromBest[] = {
      {"amx_bf16", "AMX"},  {"avx512f", "AVX-512"}, {"avx2", "AVX2"}, {"avx", "AVX"},
      {"sse4_2", "SSE4.2"}, {"sve", "SVE"},         {"asimd", "NEON"}};
  for (const auto& [flag, name] : kFromBest) {
    if (std::find(flags.begin(), flags.end(), flag) != flags.end()) return name;
  }
  return "baseline";
}

}  // namespace

Machine inspect_machine() {
  const std::string cpu = read_file_if_any("/proc/cpuinfo");
  const std::string memory = read_file_if_any("/proc/meminfo");
  Machine machine;
  machine.cpu_model = field(cpu, "model name");
  if (machine.cpu_model.empty()) machine.cpu_model = "unknown";
  machine.num_cores = num_hardware_threads();
  machine.memory_bytes = memory_field(memory, "MemTotal");
  machine.available_memory_bytes = memory_field(memory, "MemAvailable");
  const std::string flags = field(cpu, "flags");
  machine.isa_flags = known_flags(flags.empty() ? field(cpu, "Features") : flags);
  machine.best_isa = best_isa(machine.isa_flags);
  return machine;
}

}  // namespace tutti::tools
