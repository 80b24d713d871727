// A plugin's table, checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace tutti::internal {

struct PluginTable {
  std::string name;
  std::string path;  // for messages
  /// The plugin's, with NULL for what its version does not have.
  tutti_cross_device_ops_v1 calls{};
};

/// Reads no more of `table` than its struct_size says. Throws kInvalidArgument naming path and
/// member: no table, a size that no version of it has, a bad name, a required member that is NULL.
PluginTable checked_plugin_table(const tutti_cross_device_ops_v1* table, const std::string& path);

}  // namespace tutti::internal
