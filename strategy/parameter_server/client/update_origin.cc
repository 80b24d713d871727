// The stream of changes that the calling thread belongs to.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/update_origin.h"

#include "tutti/strategy/local_replica.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {

UpdateOrigin current_update_origin(std::uint64_t client) {
  UpdateOrigin origin;
  origin.stream = {UpdateStream::Kind::kClient, client, 0};
  const StrategyMode* mode = current_mode();
  const auto* replica = mode ? dynamic_cast<const LocalReplicaContext*>(mode->replica) : nullptr;
  if (replica) origin.stream.replica = static_cast<std::uint32_t>(replica->local_replica()) + 1;
  return origin;
}

}  // namespace tutti::internal
