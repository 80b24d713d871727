// MultiWorkerMirroredStrategy: which storage its variables have, and how workers begin together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <algorithm>

#include "tutti/core/hash.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/mirrored_variable.h"
#include "tutti/strategy/multi_worker/worker_team.h"

namespace tutti {
namespace {

constexpr const char* kWho = "multi_worker_mirrored";

/// This worker's share of options.replicas, and what several workers cannot do.
LocalStrategyOptions options_of_worker(const Communicator& communicator,
                                       LocalStrategyOptions options) {
  const int workers = communicator.size();
  if (options.devices.devices.empty()) options.devices = default_devices();
  for (const Device& device : options.devices.devices) {
    if (device.type == DeviceType::kCpu || workers == 1) continue;
    fail(ErrorCode::kUnimplemented, kWho, ": replicas on ", device, " with ", workers,
         " workers; expected CPUs; try mirrored on the GPUs of one machine");
  }
  const WireCompression compression = options.cross_device_ops.options.compression;
  if (compression != WireCompression::kNone) {
    fail(ErrorCode::kUnimplemented, kWho, ": compression ", to_string(compression),
         "; expected none; try variables of bfloat16");
  }
  if (options.replicas == 0) return options;
  const auto devices = static_cast<int>(options.devices.devices.size());
  const int share =
      options.replicas / workers + (communicator.rank() < options.replicas % workers ? 1 : 0);
  if (share < devices) {
    fail(ErrorCode::kInvalidArgument, kWho, ": ", options.replicas, " replicas over ", workers,
         " workers give worker ", communicator.rank(), " ", share,
         "; expected at least one per device (", devices, "); try fewer devices or workers");
  }
  options.replicas = share;
  return options;
}

int num_local_replicas(const LocalStrategyOptions& options) {
  return options.replicas > 0 ? options.replicas : static_cast<int>(options.devices.devices.size());
}

/// The rule of LocalStrategyOptions::deterministic for what combines the workers' sums.
void check_order(const Communicator& communicator, const LocalStrategyOptions& options) {
  if (communicator.determinism() == Determinism::kCanonical || communicator.size() == 1) return;
  if (options.deterministic.value_or(false)) {
    fail(ErrorCode::kInvalidArgument, kWho, ": deterministic = true, but '", communicator.name(),
         "' does not add in canonical order; expected canonical; try it as the communicator's "
         "algorithm");
  }
  if (options.deterministic.has_value()) return;
  log_info(concat(kWho, ": ", communicator.name(),
                  ": order-free, the same bits as other strategies are not promised"));
}

std::shared_ptr<internal::WorkerTeam> team_of(std::unique_ptr<Communicator> communicator,
                                              const LocalStrategyOptions& options) {
  check_order(*communicator, options);
  return std::make_shared<internal::WorkerTeam>(std::move(communicator),
                                                num_local_replicas(options));
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                                                         LocalStrategyOptions options)
    : MultiWorkerMirroredStrategy(Checked{}, options_of_worker(*communicator, std::move(options)),
                                  std::move(communicator)) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    Checked, LocalStrategyOptions options, std::unique_ptr<Communicator>&& communicator)
    : LocalStrategy(kWho, options, team_of(std::move(communicator), options)) {
  const auto devices = replica_devices();
  placement_ = std::make_shared<const internal::Placement>(
      internal::Placement::mirrored({devices.begin(), devices.end()}));
}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

void MultiWorkerMirroredStrategy::require_equal_everywhere(const Tensor& initial_value,
                                                           const VariableOptions& options) {
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
  return std::make_shared<internal::MirroredStorage>(initial_value, std::move(options),
                                                     static_cast<const Strategy*>(this), placement,
                                                     next_work_number(initial_value.num_bytes()));
}

}  // namespace tutti
