// Names -> CrossDeviceOps.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/registry.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "core/names.h"
#include "cross_device_ops/algorithms/scheduled_ops.h"
#include "cross_device_ops/gpu_ranks.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#if TUTTI_NCCL
#include "cross_device_ops/nccl/nccl_ops.h"
#endif

namespace tutti {
namespace {

template <class Ops>
std::unique_ptr<CrossDeviceOps> make(const Group&, const CommunicationOptions&) {
  return std::make_unique<Ops>();
}

CrossDeviceOpsFactory scheduled(std::string_view algorithm) {
  return [algorithm](const Group&, const CommunicationOptions&) {
    return std::make_unique<ScheduledOps>(algorithm);
  };
}

#if TUTTI_NCCL
std::unique_ptr<CrossDeviceOps> make_nccl(const Group& group, const CommunicationOptions& options) {
  return internal::make_nccl_ops(group, options);
}
#else
constexpr const char* kNoNccl =
    "nccl: this build has no NCCL; try configuring with -DTUTTI_CUDA=ON and NCCL 2.18 or later "
    "(-DNCCL_ROOT)";
std::unique_ptr<CrossDeviceOps> make_nccl(const Group&, const CommunicationOptions&) {
  fail(ErrorCode::kUnimplemented, kNoNccl, ", or another operation such as canonical");
}
#endif

// Between processes there is no object for all replicas: communicators have engines instead.
std::unique_ptr<CrossDeviceOps> make_mpi(const Group&, const CommunicationOptions&) {
  fail(ErrorCode::kUnimplemented, "mpi: combines values of processes, one rank each; expected a ",
       "communicator of such ranks (make_communicator()); try another operation such as canonical "
       "for the replicas of one process");
}

/// The operations that this build brings.
std::vector<std::pair<std::string, CrossDeviceOpsFactory>> builtin_cross_device_ops() {
  return {{"canonical", make<Canonical>},
          {"hierarchical_copy", scheduled("hierarchical_copy")},
          {"reduction_to_one_device", scheduled("reduction_to_one_device")},
          {"ring", scheduled("ring")},
          {"halving_doubling", scheduled("halving_doubling")},
          {"tree", scheduled("tree")},
          {"auto", scheduled("auto")},
          {"nccl", make_nccl},
          {"mpi", make_mpi}};
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

std::vector<Entry> builtin_entries() {
  std::vector<Entry> entries;
  for (auto& [name, factory] : builtin_cross_device_ops()) {
    entries.push_back({name, without_options(std::move(factory))});
  }
  return entries;
}

struct Registry {
  Mutex mutex;
  std::vector<Entry> entries TUTTI_GUARDED_BY(mutex) = builtin_entries();

  const Entry* find(const std::string& name) TUTTI_REQUIRES(mutex) {
    const auto entry = std::ranges::find(entries, name, &Entry::name);
    return entry == entries.end() ? nullptr : &*entry;
  }
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
      fail(ErrorCode::kInvalidArgument, "plugin options: expected different names as in ",
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

void require_known(const Json& options, const Entry& entry) {
  for (const auto& [name, value] : options.as_object()) {
    if (std::ranges::find(entry.option_names, name) != entry.option_names.end()) continue;
    const bool has_some = !entry.option_names.empty();
    fail(ErrorCode::kInvalidArgument, "plugin options: ", entry.name, " has no option '", name,
         has_some ? "'; expected " : "'; it takes none",
         has_some ? internal::choices(entry.option_names, name) : "");
  }
}

// A list of paths with ":" between them, once; again after an error.
void load_plugins_of_environment() {
  [[maybe_unused]] static const bool done = [] {
    const char* const value = std::getenv("TUTTI_PLUGINS");
    std::string_view rest = value ? value : "";
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(':'), rest.size());
      const std::string path(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
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

bool is_on_gpus(const Group& group) {
  return !group.local_devices.empty() &&
         std::ranges::all_of(group.local_devices,
                             [](const Device& device) { return device.type == DeviceType::kGpu; });
}

// What is taken when neither an operation nor a family is named. On GPUs one line says why.
std::string automatic_name(const Group& group) {
  if (!is_on_gpus(group) || group.world_size == 1) return "canonical";
  const internal::GpuChoice choice = internal::choose_for_gpus(group.local_devices);
  log_info(concat("reductions on ", join(group.local_devices), ": ", choice.name, ", because ",
                  choice.why));
  return choice.name;
}

// The name, or what options.implementation stands for when there is none.
std::string name_of(const CrossDeviceOpsSpec& spec, const Group& group) {
  const CommunicationImplementation wanted = spec.options.implementation;
  if (wanted == CommunicationImplementation::kAuto) {
    return spec.name.empty() ? automatic_name(group) : spec.name;
  }
  std::string implied;  // RING is "ring", and so on
  for (const char c : to_string(wanted)) implied += static_cast<char>(std::tolower(c));
  if (!spec.name.empty() && spec.name != implied) {
    fail(ErrorCode::kInvalidArgument, "make_cross_device_ops: implementation ", to_string(wanted),
         " is the operation '", implied, "', but '", spec.name, "' is named; try one of the two");
  }
  return implied;
}

}  // namespace

#if !TUTTI_NCCL
std::string internal::why_no_nccl() { return kNoNccl; }
#endif

void register_cross_device_ops(const std::string& name, CrossDeviceOpsFactory factory) {
  register_cross_device_ops(name, factory ? without_options(std::move(factory)) : nullptr, {});
}

void register_cross_device_ops(const std::string& name, ConfigurableOpsFactory factory,
                               std::vector<std::string> option_names) {
  if (name.empty() || !factory) {
    fail(ErrorCode::kInvalidArgument,
         "register_cross_device_ops: expected a name and a factory, got '", name, "'",
         factory ? "" : " without factory");
  }
  Registry& all = registry();
  MutexLock lock(all.mutex);
  if (all.find(name) != nullptr) {
    fail(ErrorCode::kAlreadyExists, "register_cross_device_ops: the name '", name,
         "' is taken; expected a new one, got one of ", join(all.names()));
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
  options.validate();
  const Json own = parse_plugin_options(plugin_options);
  load_plugins_of_environment();
  Registry& all = registry();
  MutexLock lock(all.mutex);
  const Entry* const entry = all.find(name);
  if (entry == nullptr) {
    fail(ErrorCode::kNotFound, "make_cross_device_ops: no operation '", name, "'; expected one of ",
         internal::choices(all.names(), name),
         "; register_cross_device_ops() or a plugin (TUTTI_PLUGINS) adds one");
  }
  require_known(own, *entry);
  return {name, options, plugin_options};
}

std::unique_ptr<CrossDeviceOps> build_cross_device_ops(const CrossDeviceOpsSpec& spec,
                                                       const Group& group) {
  const std::string name = name_of(spec, group);
  const CrossDeviceOpsSpec checked = make_cross_device_ops(name, spec.options, spec.plugin_options);
  const auto num_local = static_cast<int>(group.local_devices.size());
  // With a way to the other processes these may have any number of replicas.
  const bool fits = group.store || group.transport
                        ? group.first_rank + num_local <= group.world_size
                        : num_local > 0 && group.world_size % num_local == 0;
  if (num_local == 0 || !fits) {
    fail(ErrorCode::kInvalidArgument, name,
         ": the group does not fit; expected a world size that is a multiple of the local devices, "
         "got world size ",
         group.world_size, " and ", group.local_devices.size(), " local devices");
  }
  Registry& all = registry();
  ConfigurableOpsFactory factory;
  {
    MutexLock lock(all.mutex);
    factory = all.find(name)->factory;
  }
  return factory(group, checked.options, parse_plugin_options(checked.plugin_options));
}

}  // namespace tutti
