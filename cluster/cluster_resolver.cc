// What all resolvers share.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/cluster_resolver.h"

#include "tutti/core/error.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {

std::map<std::string, int> ClusterResolver::num_accelerators(
    const std::optional<std::string>& task_type, std::optional<int> task_id) const {
  if (!task_type && !task_id) return find_accelerators(std::nullopt);
  const Task asked{task_type.value_or(task_type_), task_id.value_or(task_id_.value_or(0))};
  if (asked == task()) return find_accelerators(std::nullopt);
  (void)cluster_spec().task_address(asked.type, asked.index);  // kNotFound
  return find_accelerators(asked);
}

std::map<std::string, int> ClusterResolver::find_accelerators(
    const std::optional<Task>& other) const {
  if (other) {
    fail(ErrorCode::kUnimplemented, name(), ": it does not say which accelerators ", *other,
         " has; expected this process's own task; try a StaticResolver that says so, or "
         "Session::list_devices() of a task that serves");
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

}  // namespace tutti
