// Validates strategy options, and selects the devices, the reduction and a worker's share.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/strategy_options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "core/names.h"
#include "core/process_probe.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

namespace {

std::vector<Device> checked_devices(std::string_view who, const DeviceList& list) {
  std::vector<Device> devices = list.devices.empty() ? default_devices() : list.devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    require_available(devices[i]);
    internal::require(std::ranges::count(devices, devices[i]) <= 1, who, ": ", devices[i],
                      " is listed twice; use replicas = ", devices.size(),
                      " for several replicas on a device");
  }
  return devices;
}

/// Throws unless the devices are all CPUs or all GPUs, because a cross-device operation supports
/// only one kind of memory.
void check_kinds(std::string_view who, const LocalStrategyOptions& options,
                 const std::vector<Device>& replica_devices) {
  const Device first = replica_devices.front();
  for (const Device& device : replica_devices) {
    if (device.type == first.type) continue;
    fail(ErrorCode::kUnimplemented, who, ": expected replicas on one kind of device, ", "got ",
         first, " and ", device, "; use two strategies, or only GPUs");
  }
  const WireCompression compression = options.cross_device_ops.options.compression;
  if (first.type == DeviceType::kCpu || compression == WireCompression::kNone) return;
  fail(ErrorCode::kUnimplemented, who, ": compression ", to_string(compression), " on ", first,
       " is not supported, only on CPUs; use WireCompression::kNone or bfloat16 variables");
}

/// Strategies that can use XLA. The other strategies store variables apart from their replicas, or
/// sum across processes.
constexpr std::string_view kStrategiesOnXla[] = {"mirrored", "one_device", "tpu"};

/// Throws unless the devices are distinct XLA devices with one replica on each.
void check_xla_devices(std::string_view who, const LocalStrategyOptions& options) {
  const std::vector<Device>& devices = options.devices.devices;
  for (const Device& device : devices) {
    if (device.type != DeviceType::kXla) {
      fail(ErrorCode::kUnimplemented, who, ": replicas use both XLA devices and other devices; ",
           "expected one kind, got ", join(devices), "; use two strategies");
    }
    internal::require(std::ranges::count(devices, device) <= 1, who, ": ", device,
                      " appears twice in the list of devices");
  }
  const auto count = static_cast<int>(devices.size());
  if (options.replicas == 0 || options.replicas == count) return;
  fail(ErrorCode::kInvalidArgument, who, ": replicas: expected one per XLA device (", count,
       "), got ", options.replicas,
       "; list as many devices as replicas; TUTTI_XLA_CPU_DEVICES sets the number of XLA's CPU "
       "devices");
}

/// Refuses options that do not apply to XLA, which sums gradients itself, with equal weights.
void check_xla_options(std::string_view who, const LocalStrategyOptions& options) {
  const CommunicationOptions& communication = options.cross_device_ops.options;
  using enum CommunicationImplementation;
  const auto& name = options.cross_device_ops.name;
  const bool names_other =
      (!name.empty() && name != "canonical") ||
      (communication.implementation != kAuto && communication.implementation != kCanonical);
  const std::pair<bool, const char*> refused[] = {
      {names_other, "cross_device_ops"},
      {communication.bytes_per_pack != 0, "bytes_per_pack"},
      {communication.first_bytes_per_pack != 0, "first_bytes_per_pack"},
      {communication.compression != WireCompression::kNone, "compression"},
      {communication.non_finite != NonFinitePolicy::kIgnore, "non_finite"},
      {options.deterministic.value_or(false), "deterministic = true (canonical order)"},
      {!options.replica_weights.empty(), "replica_weights"}};
  for (const auto& [is_given, option] : refused) {
    if (!is_given) continue;
    fail(ErrorCode::kInvalidArgument, who, ": ", option, " on ", options.devices.devices.front(),
         " is unsupported: XLA sums gradients in its programs in replica order with equal weights; "
         "omit the option, or use CPUs or GPUs");
  }
  if (name.empty()) return;
  log_info(concat(who,
                  ": XLA adds in replica order, not in canonical order, so results may differ "
                  "from those on CPUs and GPUs"));
}

/// Returns the cross-device operation that `options` name, or canonical if they name none and
/// require canonical order.
CrossDeviceOpsSpec spec_of(const LocalStrategyOptions& options) {
  CrossDeviceOpsSpec spec = options.cross_device_ops;
  const bool names_none =
      spec.name.empty() && spec.options.implementation == CommunicationImplementation::kAuto;
  if (names_none && options.deterministic.value_or(false)) spec.name = "canonical";
  return spec;
}

/// Returns the number of tasks in TF_CONFIG that train together; 1 if this process does not train.
std::size_t workers_in(const Json& config) {
  const std::string& own = config.at("task").at("type").as_string();
  if (own != "chief" && own != "worker") return 1;
  std::size_t count = 0;
  for (const char* job : {"chief", "worker"}) {
    const Json* tasks = config.at("cluster").find(job);
    if (tasks != nullptr)
      count += tasks->is_object() ? tasks->as_object().size() : tasks->as_array().size();
  }
  return count;
}

/// Returns the number of processes according to TF_CONFIG or a launcher's variables. Does not use a
/// resolver, which would load gRPC into programs that join no cluster.
LaunchedCopies copies_of_this_program() {
  const char* const text = std::getenv("TF_CONFIG");
  if (text == nullptr || *text == '\0') {
    return launched_copies([](const char* name) -> std::optional<std::string> {
      const char* const value = std::getenv(name);
      return value ? std::optional<std::string>(value) : std::nullopt;
    });
  }
  try {
    return {static_cast<int>(workers_in(Json::parse(text, "TF_CONFIG"))), "TF_CONFIG"};
  } catch (const Error&) {
    return {};  // errors are reported by the code that joins the cluster
  }
}

}  // namespace

std::vector<Device> replica_devices_of(std::string_view who, const LocalStrategyOptions& options) {
  const std::vector<Device> devices = checked_devices(who, options.devices);
  const auto num_devices = static_cast<int>(devices.size());
  const int replicas = options.replicas == 0 ? num_devices : options.replicas;
  internal::require(replicas >= num_devices, who, ": replicas: expected at least one per device (",
                    num_devices, "), got ", options.replicas, "; try fewer devices");
  std::vector<Device> result;
  for (int r = 0; r < replicas; ++r) {
    result.push_back(devices[static_cast<std::size_t>(r * num_devices / replicas)]);
  }
  return result;
}

std::vector<Device> consume_xla_devices(std::string_view who, LocalStrategyOptions& options) {
  std::vector<Device>& devices = options.devices.devices;
  const auto is_xla = [](const Device& device) { return device.type == DeviceType::kXla; };
  if (std::ranges::none_of(devices, is_xla)) return {};
  if (std::ranges::find(kStrategiesOnXla, who) == std::end(kStrategiesOnXla)) return {};
  check_xla_devices(who, options);
  check_xla_options(who, options);
  std::vector<Device> on_xla = devices;
  for (Device& device : devices) device.type = DeviceType::kCpu;
  return on_xla;
}

void check_weights(std::string_view who, const LocalStrategyOptions& options, int num_replicas) {
  const auto& weights = options.replica_weights;
  if (weights.empty()) return;
  const auto is_positive = [](double weight) { return weight > 0.0 && std::isfinite(weight); };
  if (std::ssize(weights) == num_replicas && std::ranges::all_of(weights, is_positive)) return;
  fail(ErrorCode::kInvalidArgument, who, ": replica_weights: expected ", num_replicas,
       " positive numbers, one per replica, or none, got [", join(weights), "]");
}

namespace {
constexpr const char* kAccepted = "; deterministic = false turns this warning off";
}  // namespace

std::unique_ptr<CrossDeviceOps> build_ops(std::string_view who, const LocalStrategyOptions& options,
                                          const std::vector<Device>& replica_devices) {
  check_kinds(who, options, replica_devices);
  auto ops = build_cross_device_ops(
      spec_of(options), Group{static_cast<int>(replica_devices.size()), 0, replica_devices});
  if (ops->determinism() == Determinism::kCanonical || replica_devices.size() == 1) return ops;
  if (options.deterministic.value_or(false)) {
    fail(ErrorCode::kInvalidArgument, who, ": deterministic = true, but '", ops->name(),
         "' does not add in canonical order; expected canonical, reduction_to_one_device or "
         "hierarchical_copy; omit cross_device_ops");
  }
  if (!options.deterministic.has_value()) {
    const bool is_repeatable = ops->determinism() == Determinism::kRunToRun;
    log_warning(concat(who, ": ", ops->name(), ": ",
                       is_repeatable
                           ? "results are bit-identical between runs, but may differ from "
                             "those of other strategies"
                           : "sums have no fixed order, so results may differ between runs",
                       kAccepted));
  }
  return ops;
}

LocalStrategyOptions checked_for_workers(LocalStrategyOptions options) {
  const std::string warning =
      warning_of_copies(copies_of_this_program(), "MultiWorkerMirroredStrategy");
  if (!warning.empty()) log_warning_once(warning);
  return options;
}

namespace {

/// Returns the options with this worker's share of options.replicas.
LocalStrategyOptions options_of_worker(std::string_view who, int worker, int workers,
                                       LocalStrategyOptions options) {
  if (options.devices.devices.empty()) options.devices = default_devices();
  const auto devices = static_cast<int>(options.devices.devices.size());
  if (options.replicas == 0) {
    options.replicas = devices;
    return options;
  }
  const int share = options.replicas / workers + (worker < options.replicas % workers ? 1 : 0);
  internal::require(share >= devices, who, ": ", options.replicas, " replicas over ", workers,
                    " workers give worker ", worker, " a share of ", share,
                    "; expected at least one replica per device (", devices,
                    "); try fewer devices or workers");
  options.replicas = share;
  return options;
}

/// Checks that the algorithm that combines the workers' sums satisfies
/// LocalStrategyOptions::deterministic.
void check_order(std::string_view who, const WorkerTeam& team,
                 const LocalStrategyOptions& options) {
  if (team.is_canonical() || team.num_workers() == 1) return;
  if (options.deterministic.value_or(false)) {
    fail(ErrorCode::kInvalidArgument, who, ": deterministic = true, but '", team.algorithm(),
         "' does not add in canonical order; expected canonical");
  }
  if (options.deterministic.has_value()) return;
  log_warning(concat(
      who, ": ", team.algorithm(),
      ": the order of summation is not fixed, so results may not be bit-identical between runs",
      kAccepted));
}

/// Returns the operation that an implementation implies; "" for AUTO.
std::string_view implied_by(CommunicationImplementation implementation) {
  switch (implementation) {
    case CommunicationImplementation::kRing:
      return "ring";
    case CommunicationImplementation::kMpi:
      return "mpi";
    case CommunicationImplementation::kNccl:
      return "nccl";
    case CommunicationImplementation::kCanonical:
      return "canonical";
    case CommunicationImplementation::kAuto:
      break;
  }
  return "";
}

/// Returns the named algorithm that combines gradients between workers; "" if none is named.
std::string wanted_by(std::string_view who, const CrossDeviceOpsSpec& spec) {
  const std::string implied(implied_by(spec.options.implementation));
  if (spec.name.empty() || implied.empty() || spec.name == implied) {
    return spec.name.empty() ? implied : spec.name;
  }
  fail(ErrorCode::kInvalidArgument, who, ": implementation ",
       to_string(spec.options.implementation), " selects '", implied,
       "', but cross_device_ops selects '", spec.name, "'; set only one of the two");
}

/// Returns the algorithm with which hosts combine values, using messages or shared memory. GPUs use
/// either this algorithm or NCCL.
std::string algorithm_of(std::string_view who, const CrossDeviceOpsSpec& spec) {
  const std::string wanted = wanted_by(who, spec);
  return wanted.empty() || wanted == "nccl" ? "canonical" : wanted;
}

CommunicatorOptions communication_of(std::string_view who, const LocalStrategyOptions& options) {
  const auto& timeout = options.cross_device_ops.options.timeout;
  return {.algorithm = algorithm_of(who, options.cross_device_ops),
          .plugin_options = options.cross_device_ops.plugin_options,
          .timeout = timeout ? Duration(*timeout) : Duration(options.timeout)};
}

bool are_gpus(const LocalStrategyOptions& options) {
  return options.devices.devices.front().type == DeviceType::kGpu;
}

/// Returns the devices of this worker's replicas, and whether NCCL may sum their gradients across
/// `workers` workers. `order` is the determinism of the algorithm that is used without NCCL. If the
/// options name no algorithm, NCCL may sum only if `order` is kCanonical.
WorkerGpus gpus_of(std::string_view who, const LocalStrategyOptions& options, int workers,
                   Determinism order) {
  const std::string wanted = wanted_by(who, options.cross_device_ops);
  WorkerGpus gpus;
  const auto num_devices = static_cast<int>(options.devices.devices.size());
  for (int r = 0; r < options.replicas; ++r) {
    const auto device = static_cast<std::size_t>(r * num_devices / options.replicas);
    require_available(gpus.devices.emplace_back(options.devices.devices[device]));
  }
  const bool is_open =
      wanted.empty() && order == Determinism::kCanonical && !options.deterministic.value_or(false);
  if (workers == 1 && are_gpus(options)) return gpus;  // same as MirroredStrategy
  gpus.use = wanted == "nccl" ? NcclUse::kAlways : is_open ? NcclUse::kIfAllCan : NcclUse::kNever;
  gpus.timeout = options.cross_device_ops.options.timeout.value_or(gpus.timeout);
  return gpus;
}

/// Throws for algorithms that send partial sums, because compression to 16 bits applies only to
/// gradients of single replicas.
void check_compression(std::string_view who, const WorkerTeam& team,
                       const LocalStrategyOptions& options) {
  const WireCompression compression = options.cross_device_ops.options.compression;
  if (compression == WireCompression::kNone || team.is_canonical()) return;
  fail(ErrorCode::kUnimplemented, who, ": compression ", to_string(compression),
       " is not supported with '", team.algorithm(),
       "'; expected canonical, which sends each replica's gradient in 16 bits; ",
       "use implementation CANONICAL, or no compression");
}

/// Returns the options for combining one worker's replicas: `options` if there is only one worker
/// and it does not use "mpi"; otherwise options that select "canonical".
LocalStrategyOptions for_replicas(std::string_view who, LocalStrategyOptions options, int workers) {
  if (workers == 1 && wanted_by(who, options.cross_device_ops) != "mpi") return options;
  options.cross_device_ops.name = "canonical";
  options.cross_device_ops.plugin_options.clear();  // they configure the cross-worker operation
  options.cross_device_ops.options.implementation = CommunicationImplementation::kAuto;
  return options;
}

TeamSetup checked(std::string_view who, LocalStrategyOptions options,
                  std::shared_ptr<WorkerTeam> team) {
  LocalStrategyOptions own = for_replicas(who, std::move(options), team->num_workers());
  check_order(who, *team, own);
  check_compression(who, *team, own);
  return {std::move(own), std::move(team)};
}

}  // namespace

TeamSetup join_team(std::string_view who, std::shared_ptr<WorkerGroup> group,
                    const LocalStrategyOptions& options, const StragglerOptions& stragglers) {
  const int workers = group->num_workers();
  LocalStrategyOptions own = options_of_worker(who, group->worker(), workers, options);
  const CommunicatorOptions communication = communication_of(who, own);
  WorkerGpus gpus = gpus_of(who, own, workers, Determinism::kCanonical);
  auto team =
      std::make_shared<WorkerTeam>(std::move(group), communication, std::move(gpus), stragglers);
  return checked(who, std::move(own), std::move(team));
}

TeamSetup join_team(std::string_view who, std::unique_ptr<Communicator> communicator,
                    const LocalStrategyOptions& options, const StragglerOptions& stragglers) {
  const int workers = communicator->size();
  LocalStrategyOptions own = options_of_worker(who, communicator->rank(), workers, options);
  WorkerGpus gpus = gpus_of(who, own, workers, communicator->determinism());
  auto team = std::make_shared<WorkerTeam>(std::move(communicator), std::move(gpus), stragglers);
  return checked(who, std::move(own), std::move(team));
}

}  // namespace tutti::internal
