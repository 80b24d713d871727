// How a process finds out who is in its cluster and which task it is itself.
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

// Environment variables as a value, so that whatever reads them can be tested and repeated.

/// Variables by name. Resolvers read one when they are made; what the process changes later does
/// not reach them. A value type.
class Environment {
 public:
  using Variables = std::map<std::string, std::string, std::less<>>;

  /// No variables.
  Environment() = default;
  /// `Environment({{"TF_CONFIG", text}})`.
  Environment(std::initializer_list<Variables::value_type> variables) : variables_(variables) {}
  explicit Environment(Variables variables) : variables_(std::move(variables)) {}
  /// Those of this process, now.
  static Environment of_process();

  /// Nothing when the variable is not set. An empty text counts as set.
  std::optional<std::string> find(std::string_view name) const;
  bool has(std::string_view name) const { return variables_.contains(name); }
  /// Throws kFailedPrecondition "<who>: the variable <name> is not set; ..." with `remedy`.
  const std::string& at(std::string_view who, std::string_view name, std::string_view remedy) const;
  /// The first of `names` that is set.
  std::optional<std::string> first_of(const std::vector<std::string>& names) const;
  /// A whole number. Nothing when not set; throws kInvalidArgument naming the variable, what it
  /// holds and the range when it holds anything else.
  std::optional<int> find_int(std::string_view name, int smallest, int largest) const;

 private:
  Variables variables_;
};

// A cluster that the program itself writes down.

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

// Several resolvers as one.

/// tf's UnionClusterResolver. Task, environment, layer and accelerators are those of the first.
/// Jobs are joined; two lists of one job are put one behind the other; as soon as one of them has
/// indices of its own, indices are kept, lists counting from 0, and one index given twice is an
/// error (kAlreadyExists naming both addresses). The resolvers are read now and not kept. Throws
/// kInvalidArgument for none.
class UnionResolver : public ClusterResolver {
 public:
  explicit UnionResolver(const std::vector<const ClusterResolver*>& resolvers,
                         const ResolverOverrides& overrides = {});

  std::string name() const override { return "UnionResolver"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  std::string job_id() const override { return job_id_; }

 protected:
  /// The address of a task only when type and id are asked for; else the first resolver's master.
  std::string find_master(const MasterQuery& query) const override;
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  ClusterSpec cluster_;
  std::string first_master_, job_id_;
  // Of this process (no task), and of the tasks of which the first resolver says so.
  std::map<std::optional<Task>, std::map<std::string, int>> num_accelerators_;
};

}  // namespace tutti
