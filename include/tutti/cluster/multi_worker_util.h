// Rules about the tasks of a cluster: who is chief, who counts as a worker, what is no cluster.
// SPDX-License-Identifier: Apache-2.0
//
// tf's multi_worker_util. Every function first calls validate_cluster() and throws what it throws.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/cluster_spec.h"

namespace tutti {

/// Throws kInvalidArgument, one line "<path>: expected <what>, got <found>", for: a job other than
/// chief, worker, ps and evaluator; a task whose job is not in the cluster or whose index it has
/// not; more than one chief or evaluator; a job with gaps. `source` begins the path ("TF_CONFIG").
void validate_cluster(const ClusterSpec& cluster, const Task& task,
                      std::string_view source = "ClusterSpec");
/// The same for a resolver's cluster and task; a cluster of several tasks needs a task. An empty
/// cluster is one local worker and valid.
void validate_cluster(const ClusterResolver& resolver);
/// The task of a process that does its task's work, in a cluster that is not empty. Throws as
/// validate_cluster(resolver), and for no task also where the cluster has only one.
Task require_task(const ClusterResolver& resolver);

/// What is valid but looks wrong, a line each: addresses of this machine alone beside others, which
/// every machine would take for itself.
std::vector<std::string> doubts_about(const ClusterResolver& resolver);

/// Whether the task writes checkpoints and logs: the chief; without chief worker 0; an evaluator,
/// which is a cluster of its own. In an empty cluster: true.
bool is_chief(const ClusterSpec& cluster, const Task& task);
/// The task's number among those that train: chief 0, then workers. An evaluator's is its index.
/// Throws kInvalidArgument for ps.
int id_in_cluster(const ClusterSpec& cluster, const Task& task);
/// Chief and workers; asked for an evaluator, evaluators. Throws kInvalidArgument for ps.
int worker_count(const ClusterSpec& cluster, std::string_view task_type);
/// "/job:chief/replica:0/task:0", or worker 0 without a chief; "" for an evaluator or an empty
/// cluster.
std::string collective_leader(const ClusterSpec& cluster, const Task& task);

/// Whether other processes train beside this one.
bool has_worker(const ClusterSpec& cluster);
/// Whether the task writes checkpoints that count, and summaries: what is_chief() says.
bool should_save_checkpoint(const ClusterSpec& cluster, const Task& task);
bool should_save_summary(const ClusterSpec& cluster, const Task& task);

/// The tasks that train together in the order of id_in_cluster(): chief, then workers.
std::vector<Task> training_tasks(const ClusterSpec& cluster);

}  // namespace tutti
