// Implements MirroredStrategy: replicas on threads, variables on all of their devices.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mirrored_strategy.h"

#include <utility>

#include "strategy/strategy_options.h"

namespace tutti {

MirroredStrategy::MirroredStrategy(LocalStrategyOptions options)
    : Strategy("mirrored", internal::checked_for_workers(std::move(options))) {}

std::shared_ptr<VariableStorage> MirroredStrategy::create_storage(const Tensor& initial_value,
                                                                  VariableOptions options) {
  return extended().create_storage(initial_value, std::move(options));
}

void MirroredStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  extended().run(body);
}

}  // namespace tutti
