// Runs the schedules of all ranks by one thread, on buffers that are all at hand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tutti/cross_device_ops/algorithms/rank_memory.h"

namespace tutti::internal {

/// schedules[r] on memory[r]; scratch is supplied. Messages are not copied: a receiver reads its
/// sender's memory, and a step that would overwrite it waits. Throws kInternal for schedules that
/// do not fit each other.
void run_in_lockstep(std::span<const Schedule> schedules, std::span<RankMemory> memory);

}  // namespace tutti::internal
