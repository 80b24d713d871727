// Names -> CrossDeviceOps.
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

/// The members of an operation's reductions. One process: world_size == local_devices.size().
struct Group {
  int world_size = 1;
  int first_rank = 0;
  std::vector<Device> local_devices;  // one per local replica
  /// How an operation that spans processes finds the other ranks; keys are the group's own.
  StorePart store = {};
  /// Messages between the group's ranks. As an operation gets it, tags are the operation's own and
  /// at most kLargestOperationTag, and an abort of the group ends its calls with kAborted.
  std::shared_ptr<Transport> transport = nullptr;
};

/// Makes an operation for the replicas of a group. Throws when it does not work for them.
using CrossDeviceOpsFactory =
    std::function<std::unique_ptr<CrossDeviceOps>(const Group&, const CommunicationOptions&)>;

/// Registration is an explicit call. Throws kAlreadyExists for a name taken twice, kInvalidArgument
/// for an empty one. Any thread.
void register_cross_device_ops(const std::string& name, CrossDeviceOpsFactory factory);
/// Same as CrossDeviceOpsFactory, but for an operation with options of its own. `own`: an object
/// with those that the user gave. The factory checks their values.
using ConfigurableOpsFactory = std::function<std::unique_ptr<CrossDeviceOps>(
    const Group&, const CommunicationOptions&, const Json& own)>;
/// Overload for such an operation; options other than `option_names` are refused before the factory
/// is called.
void register_cross_device_ops(const std::string& name, ConfigurableOpsFactory factory,
                               std::vector<std::string> option_names);
/// All names, built-in ones (canonical, hierarchical_copy, reduction_to_one_device, ring,
/// halving_doubling, tree, auto, nccl, mpi) first, then those of the plugins that TUTTI_PLUGINS
/// lists.
std::vector<std::string> registered_cross_device_ops();
/// Those for replicas of one process on such devices: all but mpi; on CPUs without nccl, too.
std::vector<std::string> registered_cross_device_ops(DeviceType device);

/// Loads a shared library that exports the table of plugin_abi.h, registers its operation and
/// returns the name: `make_cross_device_ops(load_cross_device_ops_plugin("./libtree_sum.so"))`. A
/// path without "/" is looked for where the system looks for libraries. The library stays loaded;
/// loading it again gives the name again. TUTTI_PLUGINS, a list of paths with ":" between them, is
/// loaded before the first operation is looked up. Any thread.
///
/// Throws, naming the path: kNotFound for a file that is not there, kInvalidArgument for one that
/// is no shared library or no plugin, for another version of the interface and for a table with a
/// missing or wrong member (naming it), kAlreadyExists for a name that is taken.
std::string load_cross_device_ops_plugin(const std::string& path);

/// A name and options, to be built by the strategy when it knows its Group. A value.
struct CrossDeviceOpsSpec {
  /// Empty: what options.implementation stands for. kAuto: canonical; for replicas on GPUs nccl if
  /// each has its own and NCCL is there, else an operation that reads peers' memory.
  std::string name = "";
  CommunicationOptions options = {};
  /// Options of the operation's own: "k=0.01,name=value" (values as in JSON; others are text) or a
  /// JSON object.
  std::string plugin_options = "";
};
/// Throws kNotFound listing the registered names, and kInvalidArgument naming a plugin option that
/// the operation does not have.
CrossDeviceOpsSpec make_cross_device_ops(const std::string& name,
                                         const CommunicationOptions& options = {},
                                         const std::string& plugin_options = "");
/// Throws kInvalidArgument for a group whose world size is no multiple of its local devices or an
/// implementation that contradicts the name, kUnimplemented for one that this build lacks.
std::unique_ptr<CrossDeviceOps> build_cross_device_ops(const CrossDeviceOpsSpec& spec,
                                                       const Group& group);

}  // namespace tutti
