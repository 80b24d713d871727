// Rules about the tasks of a cluster: chief, workers, and validation.
// SPDX-License-Identifier: Apache-2.0
//
// Mirrors TensorFlow's multi_worker_util. Functions that take a task or a task type throw the
// errors of validate_cluster().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/cluster_spec.h"

namespace tutti {

/// Checks a cluster and a task in it. Expects only the jobs chief, worker, ps and evaluator, at
/// most one chief and one evaluator, no gaps in a job, and `task` in the cluster. Otherwise throws
/// kInvalidArgument, "<path>: expected <what>, got <found>". The path begins with `source`
/// ("TF_CONFIG").
void validate_cluster(const ClusterSpec& cluster, const Task& task,
                      std::string_view source = "ClusterSpec");
/// Overload for a resolver's cluster and task; a cluster of several tasks requires the resolver to
/// have a task. An empty cluster is valid: it is one local worker.
void validate_cluster(const ClusterResolver& resolver);
/// Returns this process's task in a non-empty cluster. Throws as validate_cluster(resolver) does,
/// and also if the resolver has no task, even in a cluster of one task.
Task require_task(const ClusterResolver& resolver);

/// Returns warnings about a valid cluster, one line each. Warns if only some addresses are loopback
/// addresses, because each machine resolves such an address to itself.
std::vector<std::string> doubts_about(const ClusterResolver& resolver);

/// Returns true if the task writes checkpoints and logs: the chief; worker 0 if there is no chief;
/// an evaluator, which forms a cluster by itself; the only task of an empty cluster.
bool is_chief(const ClusterSpec& cluster, const Task& task);
/// Returns the task's rank among the tasks that train: the chief, then the workers. For an
/// evaluator, returns its index. Throws kInvalidArgument for ps.
int id_in_cluster(const ClusterSpec& cluster, const Task& task);
/// Returns the number of evaluators for the type "evaluator", else the number of chiefs and
/// workers together. Throws kInvalidArgument for ps.
int worker_count(const ClusterSpec& cluster, std::string_view task_type);
/// Returns the chief's device prefix, "/job:chief/replica:0/task:0"; worker 0's if there is no
/// chief; "" for an evaluator or an empty cluster.
std::string collective_leader(const ClusterSpec& cluster, const Task& task);

/// Returns true if more than one process trains.
bool has_worker(const ClusterSpec& cluster);
/// Same as is_chief(), because only the chief's checkpoints and summaries are kept.
bool should_save_checkpoint(const ClusterSpec& cluster, const Task& task);
bool should_save_summary(const ClusterSpec& cluster, const Task& task);

/// Returns the tasks that train, in the order of id_in_cluster(): chief, then workers.
std::vector<Task> training_tasks(const ClusterSpec& cluster);

}  // namespace tutti
