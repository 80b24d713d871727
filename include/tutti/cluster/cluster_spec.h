// ClusterSpec: the jobs, tasks and addresses of a cluster (tf.train.ClusterSpec).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <initializer_list>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/json.h"

namespace tutti {

/// One process of a cluster. A value type.
struct Task {
  std::string type = {};  // the job: "chief", "worker", "ps", "evaluator"
  int index = 0;          // index within the job

  std::string to_string() const;      // "worker 1"
  std::string device_prefix() const;  // "/job:worker/replica:0/task:1"
  auto operator<=>(const Task&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Task& task);

/// Addresses (host:port) of one job: a list, or a map that may have gaps. `{"a:1", "b:1"}` equals
/// `{{0, "a:1"}, {1, "b:1"}}`. An address of "" is unknown until the tasks connect. A value type.
class JobTasks {
 public:
  JobTasks() = default;
  JobTasks(std::initializer_list<std::string> addresses)
      : JobTasks(std::vector<std::string>(addresses)) {}
  JobTasks(const std::vector<std::string>& addresses);
  /// Throws kInvalidArgument if an index is negative or occurs twice.
  JobTasks(std::initializer_list<std::pair<int, std::string>> addresses);
  JobTasks(std::map<int, std::string> addresses);

  /// Returns the addresses by index, in ascending order.
  const std::map<int, std::string>& addresses() const { return addresses_; }
  /// Returns true if the indices are 0 to n - 1.
  bool is_dense() const;
  bool operator==(const JobTasks&) const = default;

 private:
  std::map<int, std::string> addresses_;
};

/// The jobs of a cluster. Immutable; a value type. Accessors throw kNotFound for an unknown job or
/// index, listing the known ones.
///
///     ClusterSpec cluster({{"worker", {"a:2222", "b:2222"}}, {"ps", {{0, "c:1"}, {3, "d:1"}}}});
class ClusterSpec {
 public:
  using Jobs = std::map<std::string, JobTasks, std::less<>>;

  /// Creates an empty cluster: this process runs alone.
  ClusterSpec() = default;
  /// Throws kInvalidArgument if a job has no name or occurs twice.
  ClusterSpec(std::initializer_list<std::pair<std::string, JobTasks>> jobs);
  explicit ClusterSpec(Jobs jobs);
  /// Parses {"worker": ["a:2222"], "ps": {"0": "c:1", "3": "d:1"}}. Throws kInvalidArgument with
  /// the expected and actual values and the JSON path, which begins with `path`.
  static ClusterSpec from_json(const Json& json, std::string_view path = "cluster");
  /// Parses tf's ClusterDef in protobuf's JSON form: {"job": [{"name": "worker", "tasks": {"0":
  /// "a:1"}}]}.
  static ClusterSpec from_cluster_def(const Json& json, std::string_view path = "cluster_def");

  Json to_json() const;
  Json as_cluster_def() const;
  /// Returns all jobs, keyed by name, in the form that the constructor accepts.
  const Jobs& as_dict() const { return jobs_; }

  /// Returns the names of the jobs, sorted.
  std::vector<std::string> jobs() const;
  bool has_job(std::string_view job) const { return jobs_.contains(job); }
  int num_tasks(std::string_view job) const;
  /// Returns the indices of the job's tasks, ascending; there may be gaps.
  std::vector<int> task_indices(std::string_view job) const;
  const std::string& task_address(std::string_view job, int index) const;
  /// Returns the address for each index up to the largest; nullopt where an index is missing.
  std::vector<std::optional<std::string>> job_tasks(std::string_view job) const;

  /// Same as num_tasks(), but returns 0 if the job does not exist.
  int count(std::string_view job) const;
  int total_tasks() const;
  /// Returns all tasks, sorted by job name, then by index.
  std::vector<Task> tasks() const;
  bool has_task(const Task& task) const;

  bool empty() const { return jobs_.empty(); }
  explicit operator bool() const { return !empty(); }
  bool operator==(const ClusterSpec&) const = default;
  /// Returns "2 ps (a:1, b:1), 3 workers (...)"; long lists are truncated.
  std::string to_string() const;

 private:
  const JobTasks& tasks_of(std::string_view job) const;

  Jobs jobs_;
};

std::ostream& operator<<(std::ostream& out, const ClusterSpec& cluster);

}  // namespace tutti
