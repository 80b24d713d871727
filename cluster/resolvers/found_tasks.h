// What resolvers share: checking the addresses that were found, and giving numbered tasks of a
// launcher to named jobs, in order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_spec.h"

namespace tutti::internal {

inline constexpr int kMostTasks = 65536;

/// The cluster itself, when each address is host:port and no other task's, and there is at most one
/// chief and one evaluator. Throws kInvalidArgument, one line that begins with `path` and the place
/// below it ("SM_HOSTS.worker[1]").
const ClusterSpec& checked_addresses(const ClusterSpec& cluster, const std::string& path);

using JobCounts = std::vector<std::pair<std::string, int>>;

/// "chief=1,worker=3". Throws kInvalidArgument naming `source`.
JobCounts parse_job_counts(std::string_view text, std::string_view source);

struct FilledJobs {
  ClusterSpec cluster;
  std::optional<Task> own;  // nothing: more tasks than the jobs want, and this is one of the rest
};

/// Jobs get the first addresses, each as many as it wants; without jobs all are workers. `rank` is
/// this process's place in `addresses`. Throws kInvalidArgument when there are too few, naming
/// `who`.
FilledJobs fill_jobs(JobCounts jobs, const std::vector<std::string>& addresses, int rank,
                     std::string_view who);

}  // namespace tutti::internal
