// Registry of CrossDeviceOps by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/registry.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/names.h"
#include "cross_device_ops/algorithms/algorithm.h"
#include "cross_device_ops/gpu_ranks.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#if TUTTI_NCCL
#include "cross_device_ops/nccl/nccl_ops.h"
#endif

namespace tutti {
namespace {

#if TUTTI_NCCL
std::unique_ptr<CrossDeviceOps> make_nccl(const Group& group, const CommunicationOptions& options) {
  return internal::make_nccl_ops(group, options);
}
#else
constexpr const char* kNoNccl =
    "nccl: this build has no NCCL; configure with -DTUTTI_CUDA=ON and NCCL 2.18 or later "
    "(-DNCCL_ROOT)";
std::unique_ptr<CrossDeviceOps> make_nccl(const Group&, const CommunicationOptions&) {
  fail(ErrorCode::kUnimplemented, kNoNccl, ", or use another operation such as canonical");
}
#endif

// Always throws: between processes, communicators use engines instead of CrossDeviceOps.
std::unique_ptr<CrossDeviceOps> make_mpi(const Group&, const CommunicationOptions&) {
  fail(ErrorCode::kUnimplemented,
       "mpi: combines values across processes with one rank each; expected a ",
       "communicator of such processes (make_communicator()); try another operation such as "
       "canonical for the replicas of one process");
}

struct Entry {
  std::string name;
  ConfigurableOpsFactory factory;
  std::vector<std::string> option_names = {};
};

ConfigurableOpsFactory without_options(CrossDeviceOpsFactory factory) {
  return [factory = std::move(factory)](const Group& group, const CommunicationOptions& options,
                                        const Json&) { return factory(group, options); };
}

/// Returns the built-in operations.
std::vector<Entry> builtin_entries() {
  std::vector<Entry> entries;
  const auto add = [&](std::string name, CrossDeviceOpsFactory factory) {
    entries.push_back({std::move(name), without_options(std::move(factory))});
  };
  add("canonical", [](const auto&...) { return std::make_unique<Canonical>(); });
  for (const char* name : {"hierarchical_copy", "reduction_to_one_device", "ring"}) {
    add(name, [name](const auto&...) { return scheduled_ops(name); });
  }
  add("nccl", make_nccl);
  add("mpi", make_mpi);
  return entries;
}

struct Registry {
  Mutex mutex;
  std::vector<Entry> entries TUTTI_GUARDED_BY(mutex) = builtin_entries();

  std::vector<std::string> names() TUTTI_REQUIRES(mutex) {
    return internal::names_of(entries, &Entry::name);
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

Json parse_plugin_options(const std::string& text) {
  if (text.starts_with('{')) return Json::parse(text, "plugin options");
  Json options = Json::object();
  if (text.empty()) return options;
  for (const std::string& item : split_text(text)) {
    const std::size_t end = item.find('=');
    const std::string name = item.substr(0, end);
    if (end == std::string::npos || name.empty() || options.find(name)) {
      fail(ErrorCode::kInvalidArgument, "plugin options: expected distinct names, as in ",
           "k=0.01,name=value, or a JSON object, got '", item, "' in '", text, "'");
    }
    const std::string value = item.substr(end + 1);
    try {
      options.set(name, Json::parse(value));
    } catch (const Error&) {
      options.set(name, value);
    }
  }
  return options;
}

// Loads the plugins listed in TUTTI_PLUGINS, separated by ":". Later calls do nothing, except that
// the first call after an error tries again.
void load_plugins_of_environment() {
  [[maybe_unused]] static const bool done = [] {
    const char* const value = std::getenv("TUTTI_PLUGINS");
    for (const std::string& path : split_text(value ? value : "", ':')) {
      if (path.empty()) continue;
      try {
        load_cross_device_ops_plugin(path);
      } catch (const Error& error) {
        throw error.with_context("TUTTI_PLUGINS");
      }
    }
    return true;
  }();
}

/// Returns the factory with that name. Throws the same errors as make_cross_device_ops().
ConfigurableOpsFactory factory_for(const std::string& name, const CommunicationOptions& options,
                                   const Json& own) {
  options.validate();
  load_plugins_of_environment();
  Registry& all = registry();
  MutexLock lock(all.mutex);
  const auto entry = std::ranges::find(all.entries, name, &Entry::name);
  if (entry == all.entries.end()) {
    fail(ErrorCode::kNotFound, "make_cross_device_ops: there is no operation '", name,
         "'; expected one of ", internal::choices(all.names(), name),
         "; add one with register_cross_device_ops() or as a plugin (TUTTI_PLUGINS)");
  }
  for (const auto& [option, value] : own.as_object()) {
    if (std::ranges::find(entry->option_names, option) != entry->option_names.end()) continue;
    const bool has_some = !entry->option_names.empty();
    fail(ErrorCode::kInvalidArgument, "plugin options: ", name, " has no option '", option,
         has_some ? "'; expected " : "'; it takes none",
         has_some ? internal::choices(entry->option_names, option) : "");
  }
  return entry->factory;
}

bool is_on_gpus(const Group& group) {
  return !group.local_devices.empty() &&
         std::ranges::all_of(group.local_devices,
                             [](const Device& device) { return device.type == DeviceType::kGpu; });
}

// Chooses the operation if neither a name nor an implementation is given. On GPUs, logs the reason.
std::string automatic_name(const Group& group) {
  if (!is_on_gpus(group) || group.world_size == 1) return "canonical";
  const internal::GpuChoice choice = internal::choose_for_gpus(group.local_devices);
  log_info(concat("reductions on ", join(group.local_devices), ": ", choice.name, ", because ",
                  choice.why));
  return choice.name;
}

// Returns the spec's name, or the name that options.implementation implies.
std::string name_of(const CrossDeviceOpsSpec& spec, const Group& group) {
  const CommunicationImplementation wanted = spec.options.implementation;
  if (wanted == CommunicationImplementation::kAuto) {
    return spec.name.empty() ? automatic_name(group) : spec.name;
  }
  const std::string implied = internal::lower_case(to_string(wanted));  // RING is "ring"
  if (!spec.name.empty() && spec.name != implied) {
    fail(ErrorCode::kInvalidArgument, "make_cross_device_ops: implementation ", to_string(wanted),
         " selects '", implied, "', but the name is '", spec.name, "'; set only one of the two");
  }
  return implied;
}

}  // namespace

#if !TUTTI_NCCL
std::string internal::why_no_nccl() { return kNoNccl; }
std::string internal::make_nccl_id() { fail(ErrorCode::kUnavailable, kNoNccl); }
#endif

void register_cross_device_ops(const std::string& name, CrossDeviceOpsFactory factory) {
  register_cross_device_ops(name, factory ? without_options(std::move(factory)) : nullptr, {});
}

void register_cross_device_ops(const std::string& name, ConfigurableOpsFactory factory,
                               std::vector<std::string> option_names) {
  if (name.empty() || !factory) {
    fail(ErrorCode::kInvalidArgument,
         "register_cross_device_ops: expected a name and a factory, got '", name, "'",
         factory ? "" : " without a factory");
  }
  Registry& all = registry();
  MutexLock lock(all.mutex);
  if (std::ranges::count(all.entries, name, &Entry::name) > 0) {
    fail(ErrorCode::kAlreadyExists, "register_cross_device_ops: the name '", name,
         "' is already registered; expected a name other than ", join(all.names()));
  }
  all.entries.push_back({name, std::move(factory), std::move(option_names)});
}

std::vector<std::string> registered_cross_device_ops() {
  load_plugins_of_environment();
  Registry& all = registry();
  MutexLock lock(all.mutex);
  return all.names();
}

std::vector<std::string> registered_cross_device_ops(DeviceType device) {
  std::vector<std::string> names = registered_cross_device_ops();
  std::erase(names, "mpi");
  if (device == DeviceType::kCpu) std::erase(names, "nccl");
  return names;
}

CrossDeviceOpsSpec make_cross_device_ops(const std::string& name,
                                         const CommunicationOptions& options,
                                         const std::string& plugin_options) {
  factory_for(name, options, parse_plugin_options(plugin_options));
  return {name, options, plugin_options};
}

std::unique_ptr<CrossDeviceOps> build_cross_device_ops(const CrossDeviceOpsSpec& spec,
                                                       const Group& group) {
  const std::string name = name_of(spec, group);
  const Json own = parse_plugin_options(spec.plugin_options);
  const ConfigurableOpsFactory factory = factory_for(name, spec.options, own);
  const auto num_local = static_cast<int>(group.local_devices.size());
  // A group with connections to other processes may have any number of replicas there.
  const bool fits = group.store || group.transport
                        ? group.first_rank + num_local <= group.world_size
                        : num_local > 0 && group.world_size % num_local == 0;
  internal::require(
      num_local > 0 && fits, name,
      ": invalid group; expected local devices within the world size or, without a store or ",
      "transport, a world size that is a multiple of their number, got world size ",
      group.world_size, " and ", num_local, " local devices from rank ", group.first_rank, " on");
  return factory(group, spec.options, own);
}

}  // namespace tutti
