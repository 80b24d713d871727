// Lower bound on the time for an all_reduce on this machine: one pass over the memory of all
// replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "benchmarks/tutti_bench/bench_team.h"

namespace tutti::bench {

/// Adds `num_bytes` of float32 from each of `replicas`, whose addresses are multiples of 64, and
/// stores the sum in all of them. Each thread of the team must call this inside a job. The call
/// waits at a barrier, processes the thread's part in one pass, and waits at a second barrier.
/// Uses the same vector instructions as the library.
void floor_pass(BenchTeam& team, int thread, std::span<float* const> replicas,
                std::size_t num_bytes);

}  // namespace tutti::bench
