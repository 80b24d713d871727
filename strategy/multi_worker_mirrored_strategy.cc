// Implements MultiWorkerMirroredStrategy: the storage of its variables, and how workers connect.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <algorithm>
#include <vector>

#include "core/hash.h"
#include "strategy/multi_worker/worker_team.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/strategy_options.h"
#include "strategy/variables/distributed_variable.h"

namespace tutti {
namespace internal {
namespace {

std::string digest_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.hex_digest().substr(0, 16);
}

/// Returns the digest of a variable; if its components differ, lists the digests of all of them.
std::string digest_of(const DistributedStorage& variable) {
  std::vector<std::string> digests;
  for (const Tensor& component : variable.local_components()) {
    digests.push_back(digest_of(component.to(Device{}).bytes()));
  }
  return std::ranges::count(digests, digests.front()) == std::ssize(digests)
             ? digests.front()
             : join(digests, ConsistencyCheck::kBetweenComponents);
}

}  // namespace

/// Periodic comparison of the values of mirrored variables between workers. The values are never
/// exchanged after their creation, so a bit flip in one worker's memory would persist and spread
/// through the gradients. Adds a note about each variable to the workers' ConsistencyCheck. Not
/// thread-safe.
class StateDigest {
 public:
  /// `every` is the number of steps between comparisons; 0: never. Throws kInvalidArgument if < 0.
  StateDigest(std::string who, int every) : who_(std::move(who)), every_(every) {
    if (every_ >= 0) return;
    fail(ErrorCode::kInvalidArgument, who_, ": expected digest_steps >= 0 (0: never), got ",
         every_);
  }

  /// Adds a variable unless its copies may differ. All workers must call it in the same order.
  void add(const std::shared_ptr<const DistributedStorage>& variable) {
    if (every_ == 0 || variable->options().allow_divergent) return;
    variables_.push_back(variable);
  }
  /// Compares the variables if a comparison is due after `num_steps` steps. Collective. Throws
  /// kDataLoss on all workers, naming a variable that differs and each worker's digest of it.
  void compare_when_due(std::uint64_t num_steps, WorkerTeam& team) const {
    if (every_ == 0 || num_steps % static_cast<std::uint64_t>(every_) != 0) return;
    for (const std::weak_ptr<const DistributedStorage>& each : variables_) {
      const auto variable = each.lock();
      if (!variable) continue;
      const std::string digest = digest_of(*variable);
      team.check()->note(ConsistencyCheck::Kind::kValue, variable->name(),
                         std::as_bytes(std::span(digest)), digest);
    }
    try {
      team.compare_digests();
    } catch (const Error& error) {
      throw error.with_context(concat(who_, ": after step ", num_steps));
    }
  }

 private:
  const std::string who_;
  const int every_;
  std::vector<std::weak_ptr<const DistributedStorage>> variables_;
};

}  // namespace internal

namespace {

constexpr const char* kWho = "multi_worker_mirrored";

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                                         MultiWorkerOptions options)
    : MultiWorkerMirroredStrategy(
          internal::join_team(kWho, WorkerGroup::join(resolver, options.cluster), options.local,
                              options.stragglers),
          options.digest_steps) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::unique_ptr<Communicator> communicator,
                                                         MultiWorkerOptions options)
    : MultiWorkerMirroredStrategy(
          internal::join_team(kWho, std::move(communicator), options.local, options.stragglers),
          options.digest_steps) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(internal::TeamSetup setup,
                                                         int digest_steps)
    : Strategy(kWho, std::move(setup.options), std::move(setup.team)),
      digest_(std::make_unique<internal::StateDigest>(kWho, digest_steps)) {
  extended().team()->allow_restart();
}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

bool MultiWorkerMirroredStrategy::is_replacement() const {
  return !extended().team()->is_connected();
}

std::optional<Straggler> MultiWorkerMirroredStrategy::straggler() const {
  return extended().team()->stragglers().last();
}

std::shared_ptr<VariableStorage> MultiWorkerMirroredStrategy::create_storage(
    const Tensor& initial_value, VariableOptions options) {
  if (extended().team()->is_connected()) {  // a replacement worker receives its values later
    internal::require_same_variable(kWho, *extended().team(),
                                    internal::describe_variable(options.name, initial_value));
  }
  const bool on_read = extended().is_on_read(options);
  auto storage = extended().create_storage(initial_value, std::move(options));
  if (on_read) return storage;
  digest_->add(std::static_pointer_cast<const internal::DistributedStorage>(storage));
  return storage;
}

void MultiWorkerMirroredStrategy::run_on_replicas(
    const std::function<void(ReplicaContext&)>& body) {
  extended().team()->require_connection();  // done here, before replicas make concurrent calls
  extended().run(body);
  const internal::StrategyMode* const mode = internal::current_mode();
  const bool is_nested = mode && mode->merging;
  if (!is_nested) digest_->compare_when_due(extended().num_steps(), *extended().team());
}

}  // namespace tutti
