// Measures all_reduce between the processes of a job: each is one rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "benchmarks/tutti_bench/bench_all_reduce.h"
#include "tutti/cluster/cluster_resolver.h"

namespace tutti::bench {

/// Called by every process of the cluster, with the same options but for `replicas`, which are the
/// cluster's workers. Names are measured one after the other, within a round each beside the floor,
/// which process 0 takes alone with a thread per rank. All get the same rows; `begin` and `row`
/// are called in process 0, `begin` with how its ranks are connected, too.
BenchResults bench_processes(
    const BenchOptions& options, const ClusterResolver& resolver,
    const std::function<void(const BenchResults&, const std::string& connections)>& begin,
    const std::function<void(const BenchRow&)>& row);

}  // namespace tutti::bench
