// The members of a cluster: jobs, tasks, addresses. tf.train.ClusterSpec.
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

/// One process of a cluster. A value.
struct Task {
  std::string type = {};  // the job: "chief", "worker", "ps", "evaluator"
  int index = 0;          // within the job

  std::string to_string() const;      // "worker 1"
  std::string device_prefix() const;  // "/job:worker/replica:0/task:1"
  auto operator<=>(const Task&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Task& task);

/// Addresses of one job: a list, or indices with gaps. `{"a:1", "b:1"}` equals `{{0, "a:1"}, {1,
/// "b:1"}}`. An address is host:port; "" means that it is known only when the tasks meet. A value.
class JobTasks {
 public:
  JobTasks() = default;
  JobTasks(std::initializer_list<std::string> addresses)
      : JobTasks(std::vector<std::string>(addresses)) {}
  JobTasks(const std::vector<std::string>& addresses);
  /// Throws kInvalidArgument for a negative index or one given twice.
  JobTasks(std::initializer_list<std::pair<int, std::string>> addresses);
  JobTasks(std::map<int, std::string> addresses);

  /// By index, ascending.
  const std::map<int, std::string>& addresses() const { return addresses_; }
  /// Whether the indices are 0 to n - 1.
  bool is_dense() const;
  bool operator==(const JobTasks&) const = default;

 private:
  std::map<int, std::string> addresses_;
};

/// The jobs of a cluster. Accessors throw kNotFound for an unknown job or index, naming what there
/// is. Immutable; a value.
///
///     ClusterSpec cluster({{"worker", {"a:2222", "b:2222"}}, {"ps", {{0, "c:1"}, {3, "d:1"}}}});
class ClusterSpec {
 public:
  using Jobs = std::map<std::string, JobTasks, std::less<>>;

  /// This process alone.
  ClusterSpec() = default;
  /// Throws kInvalidArgument for a job without a name or given twice.
  ClusterSpec(std::initializer_list<std::pair<std::string, JobTasks>> jobs);
  explicit ClusterSpec(Jobs jobs);
  /// Reads {"worker": ["a:2222"], "ps": {"0": "c:1", "3": "d:1"}}. Throws kInvalidArgument with the
  /// path in the JSON text, which `path` begins ("TF_CONFIG.cluster"), expected and found.
  static ClusterSpec from_json(const Json& json, std::string_view path = "cluster");
  /// Reads tf's ClusterDef in protobuf's JSON: {"job": [{"name": "worker", "tasks": {"0":
  /// "a:1"}}]}.
  static ClusterSpec from_cluster_def(const Json& json, std::string_view path = "cluster_def");

  Json to_json() const;
  Json as_cluster_def() const;
  /// What the constructor takes: all jobs by name.
  const Jobs& as_dict() const { return jobs_; }

  /// Names, sorted.
  std::vector<std::string> jobs() const;
  bool has_job(std::string_view job) const { return jobs_.contains(job); }
  int num_tasks(std::string_view job) const;
  /// Ascending; with gaps where the job has them.
  std::vector<int> task_indices(std::string_view job) const;
  const std::string& task_address(std::string_view job, int index) const;
  /// Addresses at their indices; nothing where an index is missing.
  std::vector<std::optional<std::string>> job_tasks(std::string_view job) const;

  /// The same for a job that may be missing: 0.
  int count(std::string_view job) const;
  int total_tasks() const;
  /// Every task, jobs by name, indices ascending.
  std::vector<Task> tasks() const;
  bool has_task(const Task& task) const;

  bool empty() const { return jobs_.empty(); }
  explicit operator bool() const { return !empty(); }
  bool operator==(const ClusterSpec&) const = default;
  /// "2 ps (a:1, b:1), 3 workers (...)"; long lists are cut.
  std::string to_string() const;

 private:
  const JobTasks& tasks_of(std::string_view job) const;

  Jobs jobs_;
};

std::ostream& operator<<(std::ostream& out, const ClusterSpec& cluster);

}  // namespace tutti
