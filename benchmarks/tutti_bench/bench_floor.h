// Lower bound of an all-reduce on this machine: one pass over all replicas' memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "benchmarks/tutti_bench/bench_team.h"

namespace tutti::bench {

/// Adds `num_bytes` of float32 at each of `replicas` (at multiples of 64 bytes) and stores the sum
/// to all of them. Each of the team's threads processes a part, in one pass, between two barriers.
/// Every thread of `team` calls it inside a job. Uses only the library's choice of vector
/// instructions.
void floor_pass(BenchTeam& team, int thread, std::span<float* const> replicas,
                std::size_t num_bytes);

}  // namespace tutti::bench
