// Validated function table of a plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace tutti::internal {

struct PluginTable {
  std::string name;
  std::string path;  // for error messages
  /// The plugin's functions, with NULL for members that its version lacks.
  tutti_cross_device_ops_v1 calls{};
};

/// Returns a checked copy of `table`; reads only its first struct_size bytes. Throws
/// kInvalidArgument, naming the path and the member, for a missing table, a size that no version
/// has, an invalid name, or a required member that is NULL.
PluginTable checked_plugin_table(const tutti_cross_device_ops_v1* table, const std::string& path);

}  // namespace tutti::internal
