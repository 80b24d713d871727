// Entry point of `tutti bench all_reduce`, called with the parsed flags.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/tutti_bench/bench_options.h"

namespace tutti::bench {

/// Times all_reduce of the registered operations, and this machine's lower bound. Returns 1 if a
/// result was wrong, or 2 if a flag was invalid.
int bench_all_reduce_command(const BenchFlags& flags);

}  // namespace tutti::bench
