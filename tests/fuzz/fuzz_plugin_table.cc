// Fuzzes validation of a plugin's table: any table is either accepted completely or refused with an
// Error.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cross_device_ops/plugin/load_plugin.h"
#include "tutti/core/error.h"

namespace {

using Table = tutti_cross_device_ops_v1;

void* create(const tutti_group_v1*, const char*, tutti_error_v1*) { return nullptr; }
void destroy(void*) {}
std::int32_t supports(void*, std::int32_t, std::int32_t, std::int32_t) { return 0; }
std::int32_t all_reduce(void*, std::int32_t, const tutti_buffer_v1*, std::uint32_t, std::int64_t,
                        tutti_error_v1*) {
  return 0;
}
std::int32_t determinism(void*) { return 0; }
void abort_call(void*, std::int32_t, const char*) {}
std::int32_t sliceable(void*) { return 0; }

}  // namespace

// The input has 4 bytes for the size, 4 for the reserved member, 1 whose bits mark the pointers
// that are not null, and then the name.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 9) return 0;
  Table table{};
  std::memcpy(&table.struct_size, data, 4);
  std::memcpy(&table.reserved, data + 4, 4);
  const std::uint8_t there = data[8];
  const std::string name(reinterpret_cast<const char*>(data) + 9, size - 9);
  table.name = there & 1 ? name.c_str() : nullptr;
  table.create = there & 2 ? create : nullptr;
  table.destroy = there & 4 ? destroy : nullptr;
  table.supports = there & 8 ? supports : nullptr;
  table.all_reduce = there & 16 ? all_reduce : nullptr;
  table.determinism = there & 32 ? determinism : nullptr;
  table.abort = there & 64 ? abort_call : nullptr;
  table.sliceable = there & 128 ? sliceable : nullptr;
  // Allocates whole tables for the declared size (at most 8 KiB), so that a sanitizer detects reads
  // far beyond it.
  std::vector<Table> memory(1 + std::min<std::size_t>(table.struct_size, 8192) / sizeof(Table));
  memory.front() = table;
  try {
    const auto checked = tutti::internal::checked_plugin_table(memory.data(), "fuzz");
    const Table& calls = checked.calls;
    const bool whole = calls.create && calls.destroy && calls.supports && calls.all_reduce;
    // A member beyond the declared size must count as missing.
    if (calls.abort && table.struct_size < offsetof(Table, sliceable)) std::abort();
    if (calls.sliceable && table.struct_size < offsetof(Table, option_names)) std::abort();
    if (!whole || checked.name.empty() || checked.name.size() > 63) std::abort();
  } catch (const tutti::Error&) {
  }
  return 0;
}
