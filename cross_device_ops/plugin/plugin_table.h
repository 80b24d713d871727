// The table of a plugin, after everything in it was checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace tutti::internal {

/// A plugin's functions, with defaults where the table has none.
struct PluginTable {
  std::string name;
  std::string path;  // for messages
  decltype(tutti_cross_device_ops_v1::create) create = nullptr;
  decltype(tutti_cross_device_ops_v1::destroy) destroy = nullptr;
  decltype(tutti_cross_device_ops_v1::supports) supports = nullptr;
  decltype(tutti_cross_device_ops_v1::all_reduce) all_reduce = nullptr;
  decltype(tutti_cross_device_ops_v1::determinism) determinism =
      nullptr;  // this and those below may stay so
  decltype(tutti_cross_device_ops_v1::spans_processes) spans_processes = nullptr;
  decltype(tutti_cross_device_ops_v1::reduce) reduce = nullptr;
  decltype(tutti_cross_device_ops_v1::broadcast) broadcast = nullptr;
  decltype(tutti_cross_device_ops_v1::all_gather) all_gather = nullptr;
  decltype(tutti_cross_device_ops_v1::reduce_scatter) reduce_scatter = nullptr;
  decltype(tutti_cross_device_ops_v1::all_to_all) all_to_all = nullptr;
  decltype(tutti_cross_device_ops_v1::abort) abort = nullptr;
  decltype(tutti_cross_device_ops_v1::sliceable) sliceable = nullptr;
};

/// Reads no more of `table` than its struct_size says. Throws kInvalidArgument naming path and
/// member: no table, a size that no version of it has, a bad name, a required member that is NULL.
PluginTable checked_plugin_table(const tutti_cross_device_ops_v1* table, const std::string& path);

}  // namespace tutti::internal
