// Cross-device operations from shared libraries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// Loads a shared library that exports the table of plugin_abi.h, registers its operation and
/// returns the name: `make_cross_device_ops(load_cross_device_ops_plugin("./libtree_sum.so"))`. A
/// path without "/" is looked for where the system looks for libraries. The library stays loaded.
/// Loading a file again gives the name again. Any thread.
///
/// Throws, naming the path: kNotFound for a file that is not there, kInvalidArgument for one that
/// is no shared library or no plugin, for another version of the interface and for a table with a
/// missing or wrong member (naming it), kAlreadyExists for a name that is taken.
///
/// The environment variable TUTTI_PLUGINS, a list of paths with ":" between them, is loaded before
/// the first operation is looked up.
std::string load_cross_device_ops_plugin(const std::string& path);

}  // namespace tutti
