// The stream of changes that the calling thread belongs to.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/update_origin.h"

#include "tutti/strategy/local_replica.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {
namespace {

/// 0 outside replicas, whose first is 1.
std::uint32_t replica_of_thread() {
  const StrategyMode* mode = current_mode();
  const auto* replica = mode ? dynamic_cast<const LocalReplicaContext*>(mode->replica) : nullptr;
  return replica ? static_cast<std::uint32_t>(replica->local_replica()) + 1 : 0;
}

}  // namespace

UpdateOrigin current_update_origin(std::uint64_t client) {
  if (const ClosureContext* const closure = ClosureContext::current()) {
    return {{UpdateStream::Kind::kClosure, closure->number(), replica_of_thread()},
            closure->attempt(),
            closure->term(),
            closure->finished_below()};
  }
  return {{UpdateStream::Kind::kClient, client, replica_of_thread()}};
}

}  // namespace tutti::internal
