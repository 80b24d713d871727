// The least time that this machine needs for an all-reduce: one pass over all replicas' memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "benchmarks/tutti_bench/bench_team.h"

namespace tutti::bench {

/// Adds `num_bytes` of float32 at each of `replicas` (at multiples of 64 bytes) and stores the sum
/// to all of them: each of the team's threads a part, in one pass, between two barriers. Called by
/// every thread of `team` inside a job. Nothing of the library is in it but the choice of vector
/// instructions.
void floor_pass(BenchTeam& team, int thread, std::span<float* const> replicas,
                std::size_t num_bytes);

}  // namespace tutti::bench
