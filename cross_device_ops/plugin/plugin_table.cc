// Checks of a plugin's table.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/plugin/plugin_table.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

using Table = tutti_cross_device_ops_v1;

constexpr std::size_t kLongestName = 63;
// The members up to all_reduce are there since the first version.
constexpr std::size_t kSmallest = offsetof(Table, determinism);
// Larger than any version will be: a number that is no size.
constexpr std::size_t kLargest = 4096;

template <class... Parts>
[[noreturn]] void refuse(const std::string& path, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, "plugin '", path, "': ", parts...);
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

std::string checked_name(const char* name, const std::string& path) {
  if (!name) refuse(path, "its table has no name; expected 1 to ", kLongestName, " characters");
  const std::size_t length = ::strnlen(name, kLongestName + 1);
  const std::string_view text(name, length);
  if (length == 0 || length > kLongestName || !std::ranges::all_of(text, is_name_character)) {
    refuse(path, "the name in its table; expected 1 to ", kLongestName,
           " letters, digits, '_', '-' or '.', got ", length > kLongestName ? "more" : "'",
           length > kLongestName ? "" : text, length > kLongestName ? "" : "'");
  }
  return std::string(text);
}

void require(bool there, const char* member, const PluginTable& table) {
  if (there) return;
  refuse(table.path, "operation '", table.name, "': the member '", member,
         "' of its table is NULL; expected a function");
}

}  // namespace

PluginTable checked_plugin_table(const Table* table, const std::string& path) {
  if (!table) refuse(path, TUTTI_PLUGIN_SYMBOL, "() returned NULL; expected a table");
  const std::size_t size = table->struct_size;
  if (size < kSmallest || size > kLargest || size % alignof(Table) != 0) {
    refuse(path, "the struct_size of its table is ", size, "; expected sizeof(",
           "tutti_cross_device_ops_v1): ", sizeof(Table), ", or that of another version, from ",
           kSmallest, " on");
  }
  PluginTable checked;
  checked.path = path;
  // Members beyond the plugin's size stay NULL; those beyond ours are not looked at.
  Table& known = checked.calls;
  std::memcpy(&known, table, std::min(size, sizeof(Table)));
  checked.name = checked_name(known.name, path);
  require(known.create != nullptr, "create", checked);
  require(known.destroy != nullptr, "destroy", checked);
  require(known.supports != nullptr, "supports", checked);
  require(known.all_reduce != nullptr, "all_reduce", checked);
  if (known.reserved != 0) {
    refuse(path, "operation '", checked.name, "': the member 'reserved' of its table is ",
           known.reserved, "; expected 0");
  }
  return checked;
}

}  // namespace tutti::internal
