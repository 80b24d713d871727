// Command `tutti bench all_reduce`, for the program that has the flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/tutti_bench/bench_options.h"

namespace tutti::bench {

/// Times all_reduce of the registered operations and this machine's lower bound. Returns 1 if a
/// result was wrong, 2 for senseless flags.
int bench_all_reduce_command(const BenchFlags& flags);

}  // namespace tutti::bench
