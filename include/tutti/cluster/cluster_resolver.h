// Cluster resolvers, which find the cluster of this process and the task that it runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_spec.h"

namespace tutti {

/// Values set by the program that override the values found by a resolver.
struct ResolverOverrides {
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};
  std::optional<std::string> rpc_layer = {};
  std::optional<std::string> environment = {};
};

/// Base class of cluster resolvers. Built-in resolvers (resolvers/) read their source once, in the
/// constructor. resolver_from_environment() in resolver_registry.h chooses a resolver. Const
/// functions are thread-safe; setters are not.
class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  /// Returns the source of the cluster, such as "TF_CONFIG" or "Slurm"; errors begin with it.
  virtual std::string name() const = 0;
  /// Returns all tasks; empty if this process is alone.
  virtual ClusterSpec cluster_spec() const = 0;
  /// Returns the number of accelerators of a task by type, {{"GPU", 2}}. Default: this process's
  /// task. Throws kNotFound for a task outside the cluster, and kUnimplemented if the source does
  /// not describe other tasks (Session::list_devices() queries tasks that run a Server).
  std::map<std::string, int> num_accelerators(const std::optional<std::string>& task_type = {},
                                              std::optional<int> task_id = {}) const;
  /// Returns an id that differs between two launches on the same machines, taken from TUTTI_JOB_ID
  /// or the launcher (Slurm, MPI); "" if neither provides one.
  virtual std::string job_id() const { return {}; }

  /// Return the type and index of this process's task; "" and nullopt if unknown.
  const std::string& task_type() const { return task_type_; }
  std::optional<int> task_id() const { return task_id_; }
  /// Returns this process's task; nullopt if its type or index is unknown.
  std::optional<Task> task() const;
  /// Returns the protocol between tasks, such as "grpc"; "" if none was set.
  const std::string& rpc_layer() const { return rpc_layer_; }
  /// Returns the platform that the source names: "", "cloud" or "google".
  const std::string& environment() const { return environment_; }
  void set_task_type(std::string task_type) { task_type_ = std::move(task_type); }
  void set_task_id(int task_id) { task_id_ = task_id; }
  void set_rpc_layer(std::string rpc_layer) { rpc_layer_ = std::move(rpc_layer); }

  /// Returns the address of a task (default: this process's), such as "grpc://a:2222"; "" if there
  /// is no server to connect to. Throws kNotFound, which lists the known tasks, for an unknown
  /// task.
  std::string master(const std::optional<std::string>& task_type = {},
                     std::optional<int> task_id = {},
                     const std::optional<std::string>& rpc_layer = {}) const;
  /// Returns a description in one line: "Slurm: this is worker 1 of 3 workers (a:1, b:1, c:1)".
  std::string to_string() const;

 protected:
  ClusterResolver() = default;
  ClusterResolver(const ClusterResolver&) = default;
  ClusterResolver& operator=(const ClusterResolver&) = default;

  /// Arguments of master(); `rpc_layer` defaults to that of this process.
  struct MasterQuery {
    std::optional<std::string> task_type = {};
    std::optional<int> task_id = {};
    std::string rpc_layer = {};
  };
  /// Implements master(). Default: returns the address of the task that `query` names; this
  /// process's task supplies the type or index that the query lacks.
  virtual std::string find_master(const MasterQuery& query) const;
  /// Implements num_accelerators() for this process (nullopt) or another task. Default: returns
  /// this process's GPUs; throws kUnimplemented for other tasks.
  virtual std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const;
  void set_environment(std::string environment) { environment_ = std::move(environment); }
  void apply(const ResolverOverrides& overrides);

 private:
  std::string task_type_;
  std::optional<int> task_id_;
  std::string rpc_layer_;
  std::string environment_;
};

/// Returns "grpc://a:2222", or the address alone if `rpc_layer` is empty. Returns "" for "".
std::string format_master_url(std::string_view address, std::string_view rpc_layer);

/// Environment variables by name. Resolvers copy one in their constructor, so later changes to the
/// process's environment do not affect them. A value type, so that code that reads variables is
/// testable.
class Environment {
 public:
  using Variables = std::map<std::string, std::string, std::less<>>;

  Environment() = default;
  /// Example: `Environment({{"TF_CONFIG", text}})`.
  Environment(std::initializer_list<Variables::value_type> variables) : variables_(variables) {}
  explicit Environment(Variables variables) : variables_(std::move(variables)) {}
  /// Returns a copy of this process's current environment variables.
  static Environment of_process();

  /// Returns the value; nullopt if the variable is not set. An empty value counts as set.
  std::optional<std::string> find(std::string_view name) const;
  bool has(std::string_view name) const { return variables_.contains(name); }
  /// Returns the value. If it is not set, throws kFailedPrecondition, "<who>: the variable <name>
  /// is not set; ..." with `remedy`.
  const std::string& at(std::string_view who, std::string_view name, std::string_view remedy) const;
  /// Returns the value of the first of `names` that is set; nullopt if none is.
  std::optional<std::string> first_of(const std::vector<std::string>& names) const;
  /// Returns the value as an integer; nullopt if it is not set. Throws kInvalidArgument, with the
  /// name, value and range, if it is not an integer in the range.
  std::optional<int> find_int(std::string_view name, int smallest, int largest) const;

 private:
  Variables variables_;
};

// Clusters defined by the program.

struct StaticResolverOptions {
  std::string master = {};  // result of master() without a task
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};
  std::string environment = {};
  std::map<std::string, int> num_accelerators = {};  // accelerators of each task, by type
  std::string rpc_layer = {};
  std::string name = "StaticResolver";  // name in messages
};

/// Resolver that returns the values passed to its constructor (tf's SimpleClusterResolver).
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
  /// Returns the same number for every task, as tf's SimpleClusterResolver does.
  std::map<std::string, int> find_accelerators(const std::optional<Task>&) const override {
    return num_accelerators_;
  }
  /// Returns a task's address only if both type and id are given; otherwise the options' `master`.
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

/// Union of several resolvers (tf's UnionClusterResolver). The constructor reads them and does not
/// keep them. Task, environment, protocol and accelerators are those of the first resolver.
/// Addresses of the same job are concatenated. If a job's indices have gaps in any resolver, all
/// tasks of the job keep their indices, and a duplicate index throws kAlreadyExists naming both
/// addresses. Throws kInvalidArgument if `resolvers` is empty.
class UnionResolver : public ClusterResolver {
 public:
  explicit UnionResolver(const std::vector<const ClusterResolver*>& resolvers,
                         const ResolverOverrides& overrides = {});

  std::string name() const override { return "UnionResolver"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  std::string job_id() const override { return job_id_; }

 protected:
  /// Returns a task's address if both type and id are given; otherwise the first resolver's master.
  std::string find_master(const MasterQuery& query) const override;
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  ClusterSpec cluster_;
  std::string first_master_, job_id_;
  // The key nullopt is this process. The other keys are the tasks that the first resolver
  // describes.
  std::map<std::optional<Task>, std::map<std::string, int>> num_accelerators_;
};

}  // namespace tutti
