// Functions shared by resolvers: validation of addresses, and assignment of a launcher's numbered
// tasks to jobs.
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

/// Returns `cluster` if every address is host:port and unique, and there is at most one chief and
/// one evaluator. Otherwise throws kInvalidArgument with one line that begins with the path of the
/// faulty value ("SM_HOSTS.worker[1]" if `path` is "SM_HOSTS").
const ClusterSpec& checked_addresses(const ClusterSpec& cluster, const std::string& path);

using JobCounts = std::vector<std::pair<std::string, int>>;

/// Parses "chief=1,worker=3". Throws kInvalidArgument, naming `source`, for any other string.
JobCounts parse_job_counts(std::string_view text, std::string_view source);

struct FilledJobs {
  ClusterSpec cluster;
  std::optional<Task> own;  // this process's task; nullopt if the jobs do not need this process
};

/// Assigns the addresses to the jobs in order, as many as each job requests; without jobs, all
/// tasks are workers. `rank` is this process's index in `addresses`. Throws kInvalidArgument,
/// naming `who`, if there are too few addresses.
FilledJobs fill_jobs(JobCounts jobs, const std::vector<std::string>& addresses, int rank,
                     std::string_view who);

}  // namespace tutti::internal
