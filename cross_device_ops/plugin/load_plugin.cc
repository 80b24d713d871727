// Opening shared libraries and registering what they bring.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/plugin/abi_cross_device_ops.h"
#include "tutti/cross_device_ops/registry.h"

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
    register_cross_device_ops(
        table->name, [table](const Group& group, const CommunicationOptions& options) {
          return std::make_unique<internal::AbiCrossDeviceOps>(table, group, options);
        });
  } catch (const Error& error) {
    throw error.with_context(concat("plugin '", path, "'"));
  }
  plugins.names.emplace(library.release(), table->name);
  return table->name;
}

}  // namespace tutti
