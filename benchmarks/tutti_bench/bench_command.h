// `tutti bench all_reduce`, for the program that has the flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/tutti_bench/bench_options.h"

namespace tutti::bench {

/// Times all_reduce of the registered operations beside this machine's floor. 1 when a result was
/// wrong, 2 for flags that make no sense.
int bench_all_reduce_command(const BenchFlags& flags);

}  // namespace tutti::bench
