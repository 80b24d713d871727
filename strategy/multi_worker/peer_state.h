// The state of a commit, from the memory of one worker into that of those that have lost it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/strategy/multi_worker/worker_team.h"

namespace tutti::internal {

/// Called by all workers: `giver` has `own`, the `takers` (increasing, without the giver) get it;
/// all others, and a giver without takers, go on at once. Returns what a taker got: the bytes of
/// Checkpoint::to_bytes(), whose checksums are compared when they are restored. Throws as
/// collectives.
std::optional<std::string> hand_over_state(WorkerTeam& team, int giver,
                                           const std::vector<int>& takers,
                                           const CheckpointSnapshot* own);

}  // namespace tutti::internal
