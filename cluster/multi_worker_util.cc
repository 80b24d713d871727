// Implements validation of a cluster's tasks, and the choice of the chief.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/multi_worker_util.h"

#include <algorithm>
#include <array>

#include "cluster/json_place.h"
#include "cluster/net/socket.h"
#include "core/names.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 4> kTaskTypes{"chief", "worker", "ps", "evaluator"};
constexpr const char* kExpectedTypes = "one of chief, worker, ps, evaluator";

bool is_task_type(std::string_view type) {
  return std::ranges::find(kTaskTypes, type) != kTaskTypes.end();
}

std::string quoted_name(std::string_view text) { return internal::shown(Json(text)); }

// As in TensorFlow, an evaluator is not part of the training cluster; it forms a separate cluster.
bool is_evaluator_apart(const ClusterSpec& cluster, const Task& task) {
  return task.type == "evaluator" && !cluster.has_job("evaluator") && task.index == 0;
}

void validate_jobs(const ClusterSpec& cluster, const std::string& path) {
  for (const auto& [job, tasks] : cluster.as_dict()) {
    const std::string at = internal::member_path(path, job);
    if (!is_task_type(job)) {
      internal::fail_place(at, kExpectedTypes, quoted_name(job),
                           job == "master" ? "call it chief, its name since TensorFlow 2" : "");
    }
    const int count = cluster.num_tasks(job);
    if ((job == "chief" || job == "evaluator") && count > 1) {
      internal::fail_place(at, concat("at most one ", job), concat(count, " addresses"));
    }
    if (!tasks.is_dense()) {
      internal::fail_place(at, "tasks numbered from 0 without gaps",
                           concat("indices ", internal::brief_list(cluster.task_indices(job))));
    }
  }
}

void validate_task(const ClusterSpec& cluster, const Task& task, const std::string& path) {
  if (!is_task_type(task.type)) {
    internal::fail_place(path + ".type", kExpectedTypes, quoted_name(task.type));
  }
  if (is_evaluator_apart(cluster, task)) return;
  if (!cluster.has_job(task.type)) {
    internal::fail_place(path + ".type",
                         concat("a job of the cluster: ", internal::brief_list(cluster.jobs())),
                         quoted_name(task.type));
  }
  const int count = cluster.num_tasks(task.type);
  if (task.index >= 0 && task.index < count) return;
  const std::string range =
      count == 0 ? concat("an index of another job, because ", task.type, " has no tasks")
                 : concat("an index from 0 to ", count - 1, " of ", task.type);
  internal::fail_place(path + ".index", range, concat(task.index));
}

bool is_chief_of_valid(const ClusterSpec& cluster, const Task& task) {
  if (task.type == "chief" || task.type == "evaluator") return true;
  return cluster.count("chief") == 0 && task.type == "worker" && task.index == 0;
}

[[noreturn]] void fail_no_task(const ClusterResolver& resolver) {
  internal::fail_place(resolver.name() + ".task", "the task of this process", "nothing",
                       "add {\"type\": \"worker\", \"index\": 0}");
}

[[noreturn]] void fail_ps(std::string_view who, std::string_view type) {
  fail(ErrorCode::kInvalidArgument, who, ": expected a task that trains or evaluates, got ", type);
}

}  // namespace

void validate_cluster(const ClusterSpec& cluster, const Task& task, std::string_view source) {
  if (cluster.empty()) return;
  validate_jobs(cluster, concat(source, ".cluster"));
  validate_task(cluster, task, concat(source, ".task"));
}

void validate_cluster(const ClusterResolver& resolver) {
  const ClusterSpec cluster = resolver.cluster_spec();
  if (cluster.empty()) return;
  const std::string source = resolver.name();
  validate_jobs(cluster, source + ".cluster");
  if (const std::optional<Task> task = resolver.task()) {
    validate_task(cluster, *task, source + ".task");
  } else if (cluster.total_tasks() > 1) {
    fail_no_task(resolver);
  }
}

Task require_task(const ClusterResolver& resolver) {
  validate_cluster(resolver);
  if (const std::optional<Task> task = resolver.task()) return *task;
  fail_no_task(resolver);
}

std::vector<std::string> doubts_about(const ClusterResolver& resolver) {
  const ClusterSpec cluster = resolver.cluster_spec();
  std::string loopback, other;
  for (const Task& task : cluster.tasks()) {
    const std::string& address = cluster.task_address(task.type, task.index);
    const auto endpoint = internal::parse_endpoint(address);
    if (!endpoint) continue;  // the address is not known yet, or is not host:port
    std::string& first = is_loopback(endpoint->host) ? loopback : other;
    if (first.empty()) first = concat(task, " at ", address);
  }
  if (loopback.empty() || other.empty()) return {};
  return {concat(resolver.name(), ".cluster: ", loopback,
                 " can only be reached from the same machine, but ", other,
                 " is not a loopback address; use the name of the machine instead")};
}

bool is_chief(const ClusterSpec& cluster, const Task& task) {
  validate_cluster(cluster, task);
  return cluster.empty() || is_chief_of_valid(cluster, task);
}

int id_in_cluster(const ClusterSpec& cluster, const Task& task) {
  validate_cluster(cluster, task);
  if (task.type == "chief" || cluster.empty()) return 0;
  if (task.type == "worker") return task.index + cluster.count("chief");
  if (task.type == "evaluator") return task.index;
  fail_ps("id_in_cluster", task.type);
}

int worker_count(const ClusterSpec& cluster, std::string_view task_type) {
  validate_cluster(cluster, {std::string(task_type), 0});
  if (cluster.empty()) return 1;
  if (task_type == "evaluator") return std::max(1, cluster.count("evaluator"));
  if (task_type == "chief" || task_type == "worker") {
    return cluster.count("chief") + cluster.count("worker");
  }
  fail_ps("worker_count", task_type);
}

std::string collective_leader(const ClusterSpec& cluster, const Task& task) {
  validate_cluster(cluster, task);
  if (cluster.empty() || task.type == "evaluator") return {};
  return Task{cluster.count("chief") > 0 ? "chief" : "worker", 0}.device_prefix();
}

bool has_worker(const ClusterSpec& cluster) {
  return cluster.count("chief") + cluster.count("worker") > 1;
}

bool should_save_checkpoint(const ClusterSpec& cluster, const Task& task) {
  return is_chief(cluster, task);
}

bool should_save_summary(const ClusterSpec& cluster, const Task& task) {
  return is_chief(cluster, task);
}

std::vector<Task> training_tasks(const ClusterSpec& cluster) {
  std::vector<Task> tasks;
  for (const char* const job : {"chief", "worker"}) {
    for (int index = 0; index < cluster.count(job); ++index) tasks.push_back({job, index});
  }
  return tasks;
}

}  // namespace tutti
