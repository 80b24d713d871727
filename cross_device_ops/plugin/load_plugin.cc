// Opening shared libraries, checking their tables and registering what they bring.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "core/names.h"
#include "cross_device_ops/plugin/abi_cross_device_ops.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/registry.h"

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

namespace tutti {
namespace {

// No plugin is unloaded: its code may run until the last strategy is gone.
struct LoadedPlugins {
  Mutex mutex;
  std::map<void*, std::string> names TUTTI_GUARDED_BY(mutex);  // by the system's handle
};

LoadedPlugins& loaded_plugins() {
  static LoadedPlugins plugins;
  return plugins;
}

struct Close {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

Library open_library(const std::string& path) {
  std::error_code ignored;
  if (path.find('/') != std::string::npos && !std::filesystem::exists(path, ignored)) {
    fail(ErrorCode::kNotFound, "plugin '", path, "': there is no such file");
  }
  Library library(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library) return library;
  const char* const reason = ::dlerror();
  fail(ErrorCode::kInvalidArgument, "plugin '", path,
       "': cannot be loaded; expected a shared library, got: ", reason ? reason : "no reason",
       path.find('/') == std::string::npos ? "; try a path with '/', such as ./lib.so" : "");
}

tutti_plugin_entry_v1 find_entry(void* library, const std::string& path) {
  if (void* const symbol = ::dlsym(library, TUTTI_PLUGIN_SYMBOL)) {
    return reinterpret_cast<tutti_plugin_entry_v1>(symbol);
  }
  for (int version = 2; version < 10; ++version) {
    const std::string other = concat("tutti_cross_device_ops_plugin_v", version);
    if (!::dlsym(library, other.c_str())) continue;
    fail(ErrorCode::kInvalidArgument, "plugin '", path, "': was made for version ", version,
         " of plugin_abi.h; expected version 1 (", TUTTI_PLUGIN_SYMBOL,
         "); try a plugin built with this tutti's header");
  }
  fail(ErrorCode::kInvalidArgument, "plugin '", path, "': is no plugin; expected it to export ",
       TUTTI_PLUGIN_SYMBOL, "(), which it does not");
}

}  // namespace

std::string load_cross_device_ops_plugin(const std::string& path) {
  LoadedPlugins& plugins = loaded_plugins();
  MutexLock lock(plugins.mutex);
  Library library = open_library(path);
  if (const auto known = plugins.names.find(library.get()); known != plugins.names.end()) {
    return known->second;
  }
  const auto table = std::make_shared<const internal::PluginTable>(
      internal::checked_plugin_table(find_entry(library.get(), path)(), path));
  try {
    const char* const names = table->calls.option_names;
    register_cross_device_ops(
        table->name,
        [table](const Group& group, const CommunicationOptions& options, const Json& own) {
          return std::make_unique<internal::AbiCrossDeviceOps>(table, group, options, own);
        },
        names ? split_text(names) : std::vector<std::string>());
  } catch (const Error& error) {
    throw error.with_context(concat("plugin '", path, "'"));
  }
  plugins.names.emplace(library.release(), table->name);
  return table->name;
}

}  // namespace tutti
