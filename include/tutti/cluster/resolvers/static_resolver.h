// A cluster that the program itself writes down.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

struct StaticResolverOptions {
  std::string master = {};  // what master() gives when no task is asked for
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};
  std::string environment = {};
  std::map<std::string, int> num_accelerators = {};  // of each task
  std::string rpc_layer = {};
  std::string name = "StaticResolver";  // for messages
};

/// tf's SimpleClusterResolver: gives back what it was made of.
///
///     StaticResolver resolver({{"worker", {"a:2222", "b:2222"}}}, {.task_type = "worker",
///                             .task_id = 1});
class StaticResolver : public ClusterResolver {
 public:
  explicit StaticResolver(ClusterSpec cluster, StaticResolverOptions options = {})
      : cluster_(std::move(cluster)),
        master_(std::move(options.master)),
        name_(std::move(options.name)),
        num_accelerators_(std::move(options.num_accelerators)) {
    apply({options.task_type, options.task_id, options.rpc_layer, options.environment});
  }

  std::string name() const override { return name_; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 protected:
  /// The same for every task, as tf's.
  std::map<std::string, int> find_accelerators(const std::optional<Task>&) const override {
    return num_accelerators_;
  }
  /// The address of a task only when type and id are asked for; else `master` of the options.
  std::string find_master(const MasterQuery& query) const override {
    if (!query.task_type || !query.task_id) return format_master_url(master_, query.rpc_layer);
    return format_master_url(cluster_.task_address(*query.task_type, *query.task_id),
                             query.rpc_layer);
  }

 private:
  ClusterSpec cluster_;
  std::string master_, name_;
  std::map<std::string, int> num_accelerators_;
};

}  // namespace tutti
