// Measurement of all_reduce between the processes of a job, where each process is one rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "benchmarks/tutti_bench/bench_all_reduce.h"
#include "tutti/cluster/cluster_resolver.h"

namespace tutti::bench {

/// Collective: every process of the cluster must call it with the same options, in which `replicas`
/// is the number of workers. Measures one operation after another. Each round also measures the
/// lower bound, in process 0 with one thread per rank, but at most one per core. All processes
/// return the same rows. Process 0 calls `begin` with a description of its connections before the
/// first row, and `row` for each row.
BenchResults bench_processes(
    const BenchOptions& options, const ClusterResolver& resolver,
    const std::function<void(const BenchResults&, const std::string& connections)>& begin,
    const std::function<void(const BenchRow&)>& row);

}  // namespace tutti::bench
