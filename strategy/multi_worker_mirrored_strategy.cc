// MultiWorkerMirroredStrategy: which storage its variables have, and how workers begin together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include "strategy/multi_worker/worker_team.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/team_setup.h"
#include "strategy/variables/distributed_variable.h"
#include "strategy/variables/state_digest.h"

namespace tutti {
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
  if (extended().team()->is_connected()) {  // a replacement gets the others' values later
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
  extended().team()->require_connection();  // before the replicas' threads ask for it
  extended().run(body);
  const internal::StrategyMode* const mode = internal::current_mode();
  const bool is_nested = mode && mode->merging;
  if (!is_nested) digest_->compare_when_due(extended().num_steps(), *extended().team());
}

}  // namespace tutti
