// Sharing out replicas, and who sums gradients between workers.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/team_setup.h"

#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

/// This worker's share of options.replicas.
LocalStrategyOptions options_of_worker(std::string_view who, int worker, int workers,
                                       LocalStrategyOptions options) {
  if (options.devices.devices.empty()) options.devices = default_devices();
  const auto devices = static_cast<int>(options.devices.devices.size());
  if (options.replicas == 0) {
    options.replicas = devices;
    return options;
  }
  const int share = options.replicas / workers + (worker < options.replicas % workers ? 1 : 0);
  if (share < devices) {
    fail(ErrorCode::kInvalidArgument, who, ": ", options.replicas, " replicas over ", workers,
         " workers give worker ", worker, " ", share, "; expected at least one per device (",
         devices, "); try fewer devices or workers");
  }
  options.replicas = share;
  return options;
}

/// The rule of LocalStrategyOptions::deterministic for what combines the workers' sums.
void check_order(std::string_view who, const WorkerTeam& team,
                 const LocalStrategyOptions& options) {
  if (team.is_canonical() || team.num_workers() == 1) return;
  if (options.deterministic.value_or(false)) {
    fail(ErrorCode::kInvalidArgument, who, ": deterministic = true, but '", team.algorithm(),
         "' does not add in canonical order; expected canonical");
  }
  if (options.deterministic.has_value()) return;
  log_info(concat(who, ": ", team.algorithm(),
                  ": order-free, the same bits as other strategies are not promised"));
}

/// The operation that an implementation stands for; "" for AUTO.
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

/// What combines gradients between workers, by name; "" where that is left to us.
std::string wanted_by(std::string_view who, const CrossDeviceOpsSpec& spec) {
  const std::string implied(implied_by(spec.options.implementation));
  if (spec.name.empty() || implied.empty() || spec.name == implied) {
    return spec.name.empty() ? implied : spec.name;
  }
  fail(ErrorCode::kInvalidArgument, who, ": implementation ",
       to_string(spec.options.implementation), " is the operation '", implied, "', but '",
       spec.name, "' is named; try one of the two");
}

/// By messages or shared memory between the hosts: GPUs' sums go by NCCL or by this, too.
std::string algorithm_of(std::string_view who, const CrossDeviceOpsSpec& spec) {
  const std::string wanted = wanted_by(who, spec);
  return wanted.empty() || wanted == "nccl" ? "canonical" : wanted;
}

CommunicatorOptions communication_of(std::string_view who, const LocalStrategyOptions& options) {
  const auto& timeout = options.cross_device_ops.options.timeout;
  return {.algorithm = algorithm_of(who, options.cross_device_ops),
          .timeout = timeout ? Duration(*timeout) : Duration(options.timeout)};
}

bool are_gpus(const LocalStrategyOptions& options) {
  return options.devices.devices.front().type == DeviceType::kGpu;
}

/// This worker's replicas, and whether NCCL may sum their gradients over `workers`. `order`: of
/// what does it otherwise, where the options name nothing.
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
  if (workers == 1 && are_gpus(options)) return gpus;  // as MirroredStrategy
  gpus.use = wanted == "nccl" ? NcclUse::kAlways : is_open ? NcclUse::kIfAllCan : NcclUse::kNever;
  gpus.timeout = options.cross_device_ops.options.timeout.value_or(gpus.timeout);
  return gpus;
}

/// Replicas round their gradients to 16 bits, so what travels must be theirs, and not be rounded
/// again.
void check_compression(std::string_view who, const WorkerTeam& team,
                       const LocalStrategyOptions& options) {
  const WireCompression compression = options.cross_device_ops.options.compression;
  if (compression == WireCompression::kNone || team.is_canonical()) return;
  fail(ErrorCode::kUnimplemented, who, ": compression ", to_string(compression), " with '",
       team.algorithm(),
       "'; expected canonical, in whose messages a replica's gradient stays in 16 ",
       "bits; try implementation CANONICAL, or no compression");
}

/// One worker's replicas are combined by the operation that is named, but for one that needs
/// processes.
LocalStrategyOptions for_replicas(std::string_view who, LocalStrategyOptions options, int workers) {
  if (workers == 1 && wanted_by(who, options.cross_device_ops) != "mpi") return options;
  options.cross_device_ops.name = "canonical";
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
