// How the processes of a strategy save and restore together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/checkpoint_options.h"

#include "tutti/strategy/local_strategy.h"
#include "tutti/strategy/multi_worker/worker_team.h"

namespace tutti {

CheckpointOptions checkpoint_options(Strategy& strategy) {
  CheckpointOptions options{.writes = strategy.is_chief()};
  auto* const local = dynamic_cast<LocalStrategy*>(&strategy);
  if (!local || local->num_workers() == 1 || !internal::team_of(*local)) return options;
  options.from_writer = [team = internal::team_of(*local)](const std::string& own) {
    return team->broadcast_text(own, 0, "restore a checkpoint");
  };
  return options;
}

}  // namespace tutti
