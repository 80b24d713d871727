// Several resolvers as one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/union_resolver.h"

#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

using Addresses = std::map<int, std::string>;

/// One job of all clusters that have it.
class JobMerger {
 public:
  explicit JobMerger(std::string job) : job_(std::move(job)) {}

  void add(const JobTasks& tasks) {
    parts_.push_back(&tasks);
    all_dense_ = all_dense_ && tasks.is_dense();
  }

  JobTasks merged() const {
    Addresses merged;
    for (const JobTasks* const part : parts_) {
      const int offset = all_dense_ ? static_cast<int>(merged.size()) : 0;
      for (const auto& [index, address] : part->addresses()) {
        insert(merged, offset + index, address);
      }
    }
    return merged;
  }

 private:
  void insert(Addresses& merged, int index, const std::string& address) const {
    const auto [known, is_new] = merged.emplace(index, address);
    if (is_new) return;
    fail(ErrorCode::kAlreadyExists, "UnionResolver: two resolvers have ", Task{job_, index},
         ", at ", known->second, " and at ", address,
         "; try lists without indices, which are put one behind the other");
  }

  std::string job_;
  std::vector<const JobTasks*> parts_;
  bool all_dense_ = true;
};

ClusterSpec merge(const std::vector<ClusterSpec>& clusters) {
  std::map<std::string, JobMerger> mergers;
  for (const ClusterSpec& cluster : clusters) {
    for (const auto& [job, tasks] : cluster.as_dict()) {
      mergers.try_emplace(job, job).first->second.add(tasks);
    }
  }
  ClusterSpec::Jobs jobs;
  for (const auto& [job, merger] : mergers) jobs.emplace(job, merger.merged());
  return ClusterSpec(std::move(jobs));
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
  num_accelerators_ = first.num_accelerators();
  job_id_ = first.job_id();
  apply({first.task_type(), first.task_id(), first.rpc_layer(), first.environment()});
  apply(overrides);
}

std::string UnionResolver::find_master(const MasterQuery& query) const {
  if (!query.task_type || !query.task_id) return format_master_url(first_master_, query.rpc_layer);
  return format_master_url(cluster_.task_address(*query.task_type, *query.task_id),
                           query.rpc_layer);
}

}  // namespace tutti
