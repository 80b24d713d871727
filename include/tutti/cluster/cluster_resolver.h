// How a process finds out who is in its cluster and which task it is itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/cluster/cluster_spec.h"

namespace tutti {

/// What a program says itself instead of what a resolver found.
struct ResolverOverrides {
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};
  std::optional<std::string> rpc_layer = {};
  std::optional<std::string> environment = {};
};

/// Answers who is in the cluster. Built-in resolvers read their source once, when they are made,
/// and then always give the same answer. The resolvers: resolvers/; choosing one:
/// resolver_from_environment() in resolver_registry.h. Threads: setters by one, the rest by any.
class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  /// Whence: "TF_CONFIG", "Slurm". Stands in front of error messages.
  virtual std::string name() const = 0;
  /// All tasks; empty when this process is alone.
  virtual ClusterSpec cluster_spec() const = 0;
  /// Accelerators of a task by type: {{"GPU", 2}}; without any, empty. What is left out of the task
  /// is this process's. Throws kNotFound for a task that the cluster has not, kUnimplemented where
  /// the source says nothing of other tasks (those that serve can be asked:
  /// Session::list_devices()).
  std::map<std::string, int> num_accelerators(const std::optional<std::string>& task_type = {},
                                              std::optional<int> task_id = {}) const;
  /// A text that differs between two launches on the same machines ("TUTTI_JOB_ID", Slurm's job and
  /// step); "" when the source has none.
  virtual std::string job_id() const { return {}; }

  /// Which task this process is; "" and nothing where nobody said.
  const std::string& task_type() const { return task_type_; }
  std::optional<int> task_id() const { return task_id_; }
  /// Both, or nothing.
  std::optional<Task> task() const;
  /// "grpc", or "": none named.
  const std::string& rpc_layer() const { return rpc_layer_; }
  /// Where it runs, as the source says: "", "cloud", "google".
  const std::string& environment() const { return environment_; }
  void set_task_type(std::string task_type) { task_type_ = std::move(task_type); }
  void set_task_id(int task_id) { task_id_ = task_id; }
  void set_rpc_layer(std::string rpc_layer) { rpc_layer_ = std::move(rpc_layer); }

  /// Address of that task (default: this one) with the layer in front ("grpc://a:2222"); "" when
  /// nothing is to be connected to. Throws kNotFound naming what the cluster has.
  std::string master(const std::optional<std::string>& task_type = {},
                     std::optional<int> task_id = {},
                     const std::optional<std::string>& rpc_layer = {}) const;
  /// One line for people: "Slurm: this is worker 1 of 3 workers (a:1, b:1, c:1)".
  std::string to_string() const;

 protected:
  ClusterResolver() = default;
  ClusterResolver(const ClusterResolver&) = default;
  ClusterResolver& operator=(const ClusterResolver&) = default;

  /// Where master() was asked for a task or layer, those; else this process's.
  struct MasterQuery {
    std::optional<std::string> task_type = {};
    std::optional<int> task_id = {};
    std::string rpc_layer = {};
  };
  /// Default: the address of the task asked for, missing parts from this process; "" without task.
  virtual std::string find_master(const MasterQuery& query) const;
  /// Of this process (no task), or of another task that the cluster has. Default: this process's
  /// GPUs; kUnimplemented for others.
  virtual std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const;
  void set_environment(std::string environment) { environment_ = std::move(environment); }
  void apply(const ResolverOverrides& overrides);

 private:
  std::string task_type_;
  std::optional<int> task_id_;
  std::string rpc_layer_;
  std::string environment_;
};

/// "grpc://a:2222", or the address alone without a layer. "" stays "".
std::string format_master_url(std::string_view address, std::string_view rpc_layer);

}  // namespace tutti
