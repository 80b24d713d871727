// Registry of CrossDeviceOps by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// Largest tag that an operation may use on Group::transport.
inline constexpr std::uint64_t kLargestOperationTag = 0x7fff;

/// Group of ranks whose values an operation combines. In one process, world_size ==
/// local_devices.size().
struct Group {
  int world_size = 1;
  int first_rank = 0;
  std::vector<Device> local_devices;  // one per local replica
  /// Store through which ranks in different processes find each other. Its keys belong to this
  /// group.
  StorePart store = {};
  /// Transport for messages between the group's ranks. An operation may use all tags up to
  /// kLargestOperationTag. An abort of the group ends the operation's calls with kAborted.
  std::shared_ptr<Transport> transport = nullptr;
};

/// Creates an operation for the replicas of a group. Throws if the operation does not support them.
using CrossDeviceOpsFactory =
    std::function<std::unique_ptr<CrossDeviceOps>(const Group&, const CommunicationOptions&)>;

/// Registers an operation. Throws kAlreadyExists for a name that is taken, kInvalidArgument for an
/// empty one. Thread-safe.
void register_cross_device_ops(const std::string& name, CrossDeviceOpsFactory factory);
/// Same as CrossDeviceOpsFactory, but for an operation with options of its own. `own` is a JSON
/// object with the options that the user set. The factory checks their values.
using ConfigurableOpsFactory = std::function<std::unique_ptr<CrossDeviceOps>(
    const Group&, const CommunicationOptions&, const Json& own)>;
/// Overload for an operation with options of its own. Options other than `option_names` are
/// rejected before the factory is called.
void register_cross_device_ops(const std::string& name, ConfigurableOpsFactory factory,
                               std::vector<std::string> option_names);
/// Returns all names: first the built-in ones (canonical, hierarchical_copy,
/// reduction_to_one_device, ring, nccl, mpi), then those that the plugins in TUTTI_PLUGINS or the
/// program registered.
std::vector<std::string> registered_cross_device_ops();
/// Returns the names of operations for one process on devices of this type: all except mpi and, on
/// CPUs, nccl.
std::vector<std::string> registered_cross_device_ops(DeviceType device);

/// Loads a shared library that exports the table of plugin_abi.h, registers its operation and
/// returns the name: `make_cross_device_ops(load_cross_device_ops_plugin("./libtree_sum.so"))`. A
/// path without "/" is searched for by the dynamic loader. The library stays loaded; loading it
/// again returns the same name. TUTTI_PLUGINS, a list of paths separated by ":", is loaded before
/// the first lookup of an operation. Thread-safe.
///
/// Throws, naming the path: kNotFound if the file does not exist; kInvalidArgument if it is not a
/// shared library or not a plugin, if it has another interface version, or if a member of its table
/// (which the error names) is missing or wrong; kAlreadyExists if the name is taken.
std::string load_cross_device_ops_plugin(const std::string& path);

/// A name and options, from which the strategy builds the operation for its Group. A value type.
struct CrossDeviceOpsSpec {
  /// Name of the operation; if empty, options.implementation selects it. kAuto selects canonical on
  /// CPUs; on GPUs, nccl if it is available and no replicas share a GPU, else an operation that
  /// reads peers' memory.
  std::string name = "";
  CommunicationOptions options = {};
  /// The operation's own options: "k=0.01,name=value" or a JSON object. In the first form, a value
  /// that is not JSON counts as a string.
  std::string plugin_options = "";
};
/// Returns a spec. Throws kNotFound listing the registered names, and kInvalidArgument naming a
/// plugin option that the operation does not have.
CrossDeviceOpsSpec make_cross_device_ops(const std::string& name,
                                         const CommunicationOptions& options = {},
                                         const std::string& plugin_options = "");
/// Builds the operation. Throws kInvalidArgument if the group's world size does not match its local
/// devices, or if the implementation contradicts the name, and kUnimplemented if this build lacks
/// the operation.
std::unique_ptr<CrossDeviceOps> build_cross_device_ops(const CrossDeviceOpsSpec& spec,
                                                       const Group& group);

}  // namespace tutti
