// MultiWorkerMirroredStrategy: which storage its variables have, and how workers begin together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <algorithm>

#include "tutti/core/hash.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/mirrored_variable.h"
#include "tutti/strategy/multi_worker/state_digest.h"
#include "tutti/strategy/multi_worker/worker_team.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti {
namespace {

constexpr const char* kWho = "multi_worker_mirrored";

/// This worker's share of options.replicas.
LocalStrategyOptions options_of_worker(int worker, int workers, LocalStrategyOptions options) {
  if (options.devices.devices.empty()) options.devices = default_devices();
  const auto devices = static_cast<int>(options.devices.devices.size());
  if (options.replicas == 0) {
    options.replicas = devices;
    return options;
  }
  const int share = options.replicas / workers + (worker < options.replicas % workers ? 1 : 0);
  if (share < devices) {
    fail(ErrorCode::kInvalidArgument, kWho, ": ", options.replicas, " replicas over ", workers,
         " workers give worker ", worker, " ", share, "; expected at least one per device (",
         devices, "); try fewer devices or workers");
  }
  options.replicas = share;
  return options;
}

/// The rule of LocalStrategyOptions::deterministic for what combines the workers' sums.
void check_order(const internal::WorkerTeam& team, const LocalStrategyOptions& options) {
  if (team.is_canonical() || team.num_workers() == 1) return;
  if (options.deterministic.value_or(false)) {
    fail(ErrorCode::kInvalidArgument, kWho, ": deterministic = true, but '", team.algorithm(),
         "' does not add in canonical order; expected canonical");
  }
  if (options.deterministic.has_value()) return;
  log_info(concat(kWho, ": ", team.algorithm(),
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
std::string wanted_by(const CrossDeviceOpsSpec& spec) {
  const std::string implied(implied_by(spec.options.implementation));
  if (spec.name.empty() || implied.empty() || spec.name == implied) {
    return spec.name.empty() ? implied : spec.name;
  }
  fail(ErrorCode::kInvalidArgument, kWho, ": implementation ",
       to_string(spec.options.implementation), " is the operation '", implied, "', but '",
       spec.name, "' is named; try one of the two");
}

/// By messages or shared memory between the hosts: GPUs' sums go by NCCL or by this, too.
std::string algorithm_of(const CrossDeviceOpsSpec& spec) {
  const std::string wanted = wanted_by(spec);
  return wanted.empty() || wanted == "nccl" ? "canonical" : wanted;
}

CommunicatorOptions communication_of(const LocalStrategyOptions& options) {
  const auto& timeout = options.cross_device_ops.options.timeout;
  return {.algorithm = algorithm_of(options.cross_device_ops),
          .timeout = timeout ? Duration(*timeout) : Duration(options.timeout)};
}

bool are_gpus(const LocalStrategyOptions& options) {
  return options.devices.devices.front().type == DeviceType::kGpu;
}

/// This worker's replicas, and whether NCCL may sum their gradients over `workers`. `algorithm`
/// does it otherwise.
internal::WorkerGpus gpus_of(const LocalStrategyOptions& options, int workers,
                             std::string_view algorithm) {
  const std::string wanted = wanted_by(options.cross_device_ops);
  internal::WorkerGpus gpus;
  const auto num_devices = static_cast<int>(options.devices.devices.size());
  for (int r = 0; r < options.replicas; ++r) {
    const auto device = static_cast<std::size_t>(r * num_devices / options.replicas);
    require_available(gpus.devices.emplace_back(options.devices.devices[device]));
  }
  const bool is_open =
      wanted.empty() && algorithm == "canonical" && !options.deterministic.value_or(false);
  if (workers == 1 && are_gpus(options)) return gpus;  // as MirroredStrategy
  gpus.use = wanted == "nccl" ? internal::NcclUse::kAlways
             : is_open        ? internal::NcclUse::kIfAllCan
                              : internal::NcclUse::kNever;
  gpus.timeout = options.cross_device_ops.options.timeout.value_or(gpus.timeout);
  return gpus;
}

/// Replicas round their gradients to 16 bits, so what travels must be theirs, and not be rounded
/// again.
void check_compression(const internal::WorkerTeam& team, const LocalStrategyOptions& options) {
  const WireCompression compression = options.cross_device_ops.options.compression;
  if (compression == WireCompression::kNone || team.is_canonical()) return;
  fail(ErrorCode::kUnimplemented, kWho, ": compression ", to_string(compression), " with '",
       team.algorithm(),
       "'; expected canonical, in whose messages a replica's gradient stays in 16 ",
       "bits; try implementation CANONICAL, or no compression");
}

}  // namespace

/// What the constructors put together: this worker's options, and the others.
struct MultiWorkerMirroredStrategy::Parts {
  LocalStrategyOptions options;
  std::shared_ptr<internal::WorkerTeam> team;
  int digest_steps = 0;

  static Parts of_job(const ClusterResolver& resolver, const MultiWorkerOptions& options) {
    std::shared_ptr<WorkerGroup> group = WorkerGroup::join(resolver, options.cluster);
    LocalStrategyOptions own =
        options_of_worker(group->worker(), group->num_workers(), options.local);
    const int workers = group->num_workers();
    const CommunicatorOptions communication = communication_of(own);
    internal::WorkerGpus gpus = gpus_of(own, workers, communication.algorithm);
    return {for_replicas(std::move(own), workers),
            std::make_shared<internal::WorkerTeam>(std::move(group), communication, std::move(gpus),
                                                   options.stragglers),
            options.digest_steps};
  }

  static Parts of_communicator(std::unique_ptr<Communicator> communicator,
                               LocalStrategyOptions options) {
    const int workers = communicator->size();
    LocalStrategyOptions own = options_of_worker(communicator->rank(), workers, std::move(options));
    internal::WorkerGpus gpus = gpus_of(own, workers, communicator->name());
    return {for_replicas(std::move(own), workers),
            std::make_shared<internal::WorkerTeam>(std::move(communicator), std::move(gpus))};
  }

  /// What a worker combines alone it combines in canonical order, but for GPUs without others.
  static LocalStrategyOptions for_replicas(LocalStrategyOptions options, int workers) {
    if (workers == 1 && are_gpus(options)) return options;
    options.cross_device_ops.name = "canonical";
    options.cross_device_ops.options.implementation = CommunicationImplementation::kAuto;
    return options;
  }
};

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                                         MultiWorkerOptions options)
    : MultiWorkerMirroredStrategy(Parts::of_job(resolver, options)) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                                                         LocalStrategyOptions options)
    : MultiWorkerMirroredStrategy(
          Parts::of_communicator(std::move(communicator), std::move(options))) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(Parts parts)
    : LocalStrategy(kWho, parts.options, parts.team),
      digest_(std::make_unique<internal::StateDigest>(kWho, parts.digest_steps)) {
  check_order(*team(), parts.options);
  check_compression(*team(), parts.options);
  const auto devices = replica_devices();
  placement_ = std::make_shared<const internal::Placement>(
      internal::Placement::mirrored({devices.begin(), devices.end()}));
}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

bool MultiWorkerMirroredStrategy::is_replacement() const { return !team()->is_connected(); }

void MultiWorkerMirroredStrategy::request_stop(std::string_view reason) {
  if (ControlClient* const control = team()->control()) {
    control->request_stop(reason);
  } else {
    alone_stops_ = true;
  }
}

bool MultiWorkerMirroredStrategy::stops_after(std::int64_t step) {
  ControlClient* const control = team()->control();
  return control ? control->stops_after(static_cast<std::uint64_t>(step)) : alone_stops_;
}

std::optional<Straggler> MultiWorkerMirroredStrategy::straggler() const {
  return team()->stragglers().last();
}

void MultiWorkerMirroredStrategy::require_equal_everywhere(const Tensor& initial_value,
                                                           const VariableOptions& options) {
  if (!team()->is_connected()) return;  // it gets the others' values later
  const Tensor on_host = initial_value.to(Device{});
  Hasher hasher;
  hasher.update(on_host.bytes());
  const std::string own = concat("'", options.name, "' ", initial_value.dtype(), " ",
                                 initial_value.shape(), ", values ", hasher.hex_digest());
  const std::vector<std::string> all = team()->gather_texts(own, "create a variable");
  for (std::size_t w = 1; w < all.size(); ++w) {
    if (all[w] == all[0]) continue;
    fail(ErrorCode::kInvalidArgument, kWho, ": the workers make different variables: worker 0 ",
         all[0], "; worker ", w, " ", all[w],
         "; expected the same variables in the same order with the same initial values; try the "
         "same program and seed on all workers");
  }
}

std::shared_ptr<VariableStorage> MultiWorkerMirroredStrategy::create_storage(
    const Tensor& initial_value, VariableOptions options) {
  require_equal_everywhere(initial_value, options);
  if (is_on_read(options)) return create_on_read_storage(initial_value, std::move(options));
  const auto placement = placement_for(options, placement_);
  const auto storage = std::make_shared<internal::MirroredStorage>(
      initial_value, std::move(options), static_cast<const Strategy*>(this), placement,
      next_work_number(initial_value.num_bytes()));
  digest_->add(storage);
  return storage;
}

void MultiWorkerMirroredStrategy::run_on_replicas(
    const std::function<void(ReplicaContext&)>& body) {
  LocalStrategy::run_on_replicas(body);
  const internal::StrategyMode* const mode = internal::current_mode();
  const bool is_nested = mode && mode->merging;
  if (!is_nested) digest_->compare_when_due(num_steps(), *team());
}

}  // namespace tutti
