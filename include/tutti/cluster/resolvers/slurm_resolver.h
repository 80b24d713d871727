// Resolver for Slurm, which reads the variables that srun sets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

struct SlurmResolverOptions {
  /// Jobs with their task counts, assigned to Slurm's tasks in order. Default: all tasks are
  /// workers.
  std::vector<std::pair<std::string, int>> jobs = {};
  /// Port of the first task on each node; later tasks use the following ports.
  int port_base = 8888;
  /// Number of GPUs per node. Default: taken from CUDA_VISIBLE_DEVICES, or else SLURM_GPUS_ON_NODE.
  std::optional<int> gpus_per_node = {};
  /// Number of GPUs per task. Default: a node's GPUs divided equally among its tasks.
  std::optional<int> gpus_per_task = {};
  /// Number of tasks on each node; overrides the numbers from Slurm.
  std::optional<int> tasks_per_node = {};
  std::string rpc_layer = "grpc";
};

/// Cluster of the tasks of a Slurm step (tf's SlurmClusterResolver). Reads SLURM_PROCID,
/// SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE. Tasks are numbered node
/// by node, or round-robin if SLURM_DISTRIBUTION is cyclic; SLURM_NODEID must agree. Throws
/// kFailedPrecondition for a missing variable, and kInvalidArgument for an invalid one, or if the
/// options name more tasks or GPUs than there are. Sets no variable itself: see
/// cuda_visible_devices().
class SlurmResolver : public ClusterResolver {
 public:
  explicit SlurmResolver(const SlurmResolverOptions& options = {},
                         const Environment& environment = Environment::of_process());

  std::string name() const override { return "Slurm"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  /// Returns "<job>.<step>".
  std::string job_id() const override { return job_id_; }
  /// Returns the value for CUDA_VISIBLE_DEVICES with which the tasks of a node share its GPUs
  /// ("2,3"); nullopt if the node has no GPUs, or if Slurm has already bound GPUs to each task.
  const std::optional<std::string>& cuda_visible_devices() const { return visible_devices_; }

 protected:
  /// Returns {{"GPU", gpus_per_task}}; assumes that every node has the same number of GPUs.
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  struct Layout;

  void share_gpus(const SlurmResolverOptions& options, const Environment& environment,
                  const Layout& layout);

  ClusterSpec cluster_;
  std::string job_id_;
  int gpus_per_task_ = 0;
  std::map<std::string, int> gpus_at_;  // GPUs of each task, keyed by its address
  std::optional<std::string> visible_devices_;
};

}  // namespace tutti
