// Implements ClusterResolver, Environment and UnionResolver.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/cluster_resolver.h"

#include <unistd.h>

#include <algorithm>

#include "cluster/json_place.h"
#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {

std::map<std::string, int> ClusterResolver::num_accelerators(
    const std::optional<std::string>& task_type, std::optional<int> task_id) const {
  if (!task_type && !task_id) return find_accelerators(std::nullopt);
  const Task asked{task_type.value_or(task_type_), task_id.value_or(task_id_.value_or(0))};
  if (asked == task()) return find_accelerators(std::nullopt);
  (void)cluster_spec().task_address(asked.type, asked.index);  // throws kNotFound if unknown
  return find_accelerators(asked);
}

std::map<std::string, int> ClusterResolver::find_accelerators(
    const std::optional<Task>& other) const {
  if (other) {
    fail(ErrorCode::kUnimplemented, name(), ": expected this process's own task, got ", *other,
         ", whose accelerators are unknown; try a StaticResolver that lists them, or "
         "Session::list_devices() for a task that runs a Server");
  }
  const auto count = static_cast<int>(logical_gpus().size());
  if (count == 0) return {};
  return {{"GPU", count}};
}

std::optional<Task> ClusterResolver::task() const {
  if (task_type_.empty() || !task_id_) return std::nullopt;
  return Task{task_type_, *task_id_};
}

std::string ClusterResolver::master(const std::optional<std::string>& task_type,
                                    std::optional<int> task_id,
                                    const std::optional<std::string>& rpc_layer) const {
  return find_master({task_type, task_id, rpc_layer.value_or(rpc_layer_)});
}

std::string ClusterResolver::find_master(const MasterQuery& query) const {
  const std::string type = query.task_type.value_or(task_type_);
  const std::optional<int> id = query.task_id ? query.task_id : task_id_;
  if (type.empty() || !id) return {};
  return format_master_url(cluster_spec().task_address(type, *id), query.rpc_layer);
}

std::string ClusterResolver::to_string() const {
  const ClusterSpec cluster = cluster_spec();
  if (cluster.empty()) return concat(name(), ": this process alone");
  const std::optional<Task> own = task();
  return concat(name(), ": this is ", own ? own->to_string() : "no task", " of ", cluster);
}

void ClusterResolver::apply(const ResolverOverrides& overrides) {
  if (overrides.task_type) task_type_ = *overrides.task_type;
  if (overrides.task_id) task_id_ = *overrides.task_id;
  if (overrides.rpc_layer) rpc_layer_ = *overrides.rpc_layer;
  if (overrides.environment) environment_ = *overrides.environment;
}

std::string format_master_url(std::string_view address, std::string_view rpc_layer) {
  if (address.empty() || rpc_layer.empty()) return std::string(address);
  return concat(rpc_layer, "://", address);
}

Environment Environment::of_process() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == text.npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::find(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::nullopt : std::optional(found->second);
}

const std::string& Environment::at(std::string_view who, std::string_view name,
                                   std::string_view remedy) const {
  const auto found = variables_.find(name);
  if (found != variables_.end()) return found->second;
  fail(ErrorCode::kFailedPrecondition, who, ": the variable ", name, " is not set; ", remedy);
}

std::optional<std::string> Environment::first_of(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (auto value = find(name)) return value;
  }
  return std::nullopt;
}

std::optional<int> Environment::find_int(std::string_view name, int smallest, int largest) const {
  const std::optional<std::string> text = find(name);
  if (!text) return std::nullopt;
  const std::optional<int> number = internal::parse_index(*text, largest);
  if (number && *number >= smallest) return number;
  internal::fail_place(name, concat("a whole number from ", smallest, " to ", largest),
                       internal::shown(Json(*text)));
}

namespace {

/// Merges the tasks of one job from all clusters that contain it.
JobTasks merge(const std::string& job, const std::vector<const JobTasks*>& parts) {
  const bool all_dense = std::ranges::all_of(parts, &JobTasks::is_dense);
  std::map<int, std::string> merged;
  for (const JobTasks* const part : parts) {
    const int offset = all_dense ? static_cast<int>(merged.size()) : 0;
    for (const auto& [index, address] : part->addresses()) {
      const auto [known, is_new] = merged.emplace(offset + index, address);
      if (is_new) continue;
      fail(ErrorCode::kAlreadyExists, "UnionResolver: two resolvers define ",
           Task{job, offset + index}, ", at ", known->second, " and at ", address,
           "; use lists of addresses without indices to have them concatenated");
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

/// Returns the accelerators of each task; nullopt is the key for the resolver's own process.
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
  internal::require(!resolvers.empty(), "UnionResolver: expected at least one resolver, got none");
  std::vector<ClusterSpec> clusters;
  for (const ClusterResolver* const resolver : resolvers) {
    TUTTI_CHECK(resolver != nullptr, "UnionResolver: expected resolvers, got a null pointer");
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
