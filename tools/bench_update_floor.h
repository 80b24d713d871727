// The least time that this machine needs for a sum of gradients and a plain SGD step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "tools/bench_team.h"

namespace tutti::tools {

/// The memory of all replicas, one flat buffer of float32 each, at multiples of 64 bytes.
struct UpdateFloorBuffers {
  std::span<const float* const> gradients;  // [replica]
  std::span<float* const> weights;          // [replica]
  std::size_t count = 0;                    // floats in each
};

/// weights -= rate * sum of gradients, for all replicas, in one pass between two barriers: each of
/// the team's threads a part, in which it reads the weights of one replica and writes those of all.
/// Nothing of the library is in it. Called by every thread of `team` inside a job.
void update_floor_pass(BenchTeam& team, int thread, const UpdateFloorBuffers& buffers, float rate);

}  // namespace tutti::tools
