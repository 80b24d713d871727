// Several resolvers as one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/union_resolver.h"

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

/// One job, of all clusters that have it.
JobTasks merge(const std::string& job, const std::vector<const JobTasks*>& parts) {
  const bool all_dense = std::ranges::all_of(parts, &JobTasks::is_dense);
  std::map<int, std::string> merged;
  for (const JobTasks* const part : parts) {
    const int offset = all_dense ? static_cast<int>(merged.size()) : 0;
    for (const auto& [index, address] : part->addresses()) {
      const auto [known, is_new] = merged.emplace(offset + index, address);
      if (is_new) continue;
      fail(ErrorCode::kAlreadyExists, "UnionResolver: two resolvers have ",
           Task{job, offset + index}, ", at ", known->second, " and at ", address,
           "; try lists without indices, which are put one behind the other");
    }
  }
  return merged;
}

ClusterSpec merge(const std::vector<ClusterSpec>& clusters) {
  std::map<std::string, std::vector<const JobTasks*>> parts;
  for (const ClusterSpec& cluster : clusters) {
    for (const auto& [job, tasks] : cluster.as_dict()) parts[job].push_back(&tasks);
  }
  ClusterSpec::Jobs jobs;
  for (const auto& [job, of_job] : parts) jobs.emplace(job, merge(job, of_job));
  return ClusterSpec(std::move(jobs));
}

/// Of its own process, and of the tasks that it says something of.
std::map<std::optional<Task>, std::map<std::string, int>> accelerators_of(
    const ClusterResolver& resolver) {
  std::map<std::optional<Task>, std::map<std::string, int>> found;
  found[std::nullopt] = resolver.num_accelerators();
  const ClusterSpec cluster = resolver.cluster_spec();
  for (const auto& [job, tasks] : cluster.as_dict()) {
    for (const auto& [index, address] : tasks.addresses()) {
      try {
        found[Task{job, index}] = resolver.num_accelerators(job, index);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnimplemented) throw;
        found.erase(Task{job, index});
      }
    }
  }
  return found;
}

}  // namespace

UnionResolver::UnionResolver(const std::vector<const ClusterResolver*>& resolvers,
                             const ResolverOverrides& overrides) {
  if (resolvers.empty()) {
    fail(ErrorCode::kInvalidArgument, "UnionResolver: expected at least one resolver, got none");
  }
  std::vector<ClusterSpec> clusters;
  for (const ClusterResolver* const resolver : resolvers) {
    TUTTI_CHECK(resolver != nullptr, "a resolver of a union is missing");
    clusters.push_back(resolver->cluster_spec());
  }
  cluster_ = merge(clusters);
  const ClusterResolver& first = *resolvers.front();
  first_master_ = first.master({}, {}, "");
  num_accelerators_ = accelerators_of(first);
  job_id_ = first.job_id();
  apply({first.task_type(), first.task_id(), first.rpc_layer(), first.environment()});
  apply(overrides);
}

std::map<std::string, int> UnionResolver::find_accelerators(
    const std::optional<Task>& other) const {
  const auto known = num_accelerators_.find(other);
  return known != num_accelerators_.end() ? known->second
                                          : ClusterResolver::find_accelerators(other);
}

std::string UnionResolver::find_master(const MasterQuery& query) const {
  if (!query.task_type || !query.task_id) return format_master_url(first_master_, query.rpc_layer);
  return format_master_url(cluster_.task_address(*query.task_type, *query.task_id),
                           query.rpc_layer);
}

}  // namespace tutti
