// The state of a commit, from the memory of one worker into that of those that have lost it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "tutti/checkpoint/checkpoint.h"

namespace tutti::internal {

/// Called by all workers: `giver` has `own`, the `takers` (increasing, without the giver) get it,
/// from its memory into theirs, small tensors together, others one by one; all others, and a giver
/// without takers, go on at once. Returns what a taker got: kDataLoss where that is damaged; as
/// collectives.
std::optional<CheckpointSnapshot> hand_over_state(WorkerTeam& team, int giver,
                                                  const std::vector<int>& takers,
                                                  const CheckpointSnapshot* own);

}  // namespace tutti::internal
