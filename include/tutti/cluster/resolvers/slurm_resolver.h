// The cluster as Slurm laid it out: from the variables that srun sets.
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
  /// Jobs and their numbers of tasks, given to Slurm's tasks in this order. Empty: all are workers.
  std::vector<std::pair<std::string, int>> jobs = {};
  /// Port of the first task on each node; the next ones count up.
  int port_base = 8888;
  /// GPUs of each node; not given: as many as CUDA_VISIBLE_DEVICES lists, or SLURM_GPUS_ON_NODE
  /// says.
  std::optional<int> gpus_per_node = {};
  /// Not given: those of a node divided by its tasks.
  std::optional<int> gpus_per_task = {};
  /// The same for all nodes, instead of what Slurm says.
  std::optional<int> tasks_per_node = {};
  std::string rpc_layer = "grpc";
};

/// tf's SlurmClusterResolver. Reads SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST and
/// SLURM_STEP_TASKS_PER_NODE. Tasks are numbered node by node, or in turn under
/// SLURM_DISTRIBUTION=cyclic; what SLURM_NODEID says must agree. Throws kFailedPrecondition for a
/// missing variable, kInvalidArgument for one that cannot be read and for more tasks or GPUs than
/// there are. Changes no variable: see cuda_visible_devices().
class SlurmResolver : public ClusterResolver {
 public:
  explicit SlurmResolver(const SlurmResolverOptions& options = {},
                         const Environment& environment = Environment::of_process());

  std::string name() const override { return "Slurm"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  /// "<job>.<step>".
  std::string job_id() const override { return job_id_; }
  /// What CUDA_VISIBLE_DEVICES should be so that the tasks of a node share its GPUs ("2,3").
  /// Nothing when there are none, or when Slurm has already bound GPUs to each task.
  const std::optional<std::string>& cuda_visible_devices() const { return visible_devices_; }

 protected:
  /// {{"GPU", gpus_per_task}}; of other tasks as if each node had as many GPUs as this one.
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  struct Layout;

  void share_gpus(const SlurmResolverOptions& options, const Environment& environment,
                  const Layout& layout);

  ClusterSpec cluster_;
  std::string job_id_;
  int gpus_per_task_ = 0;
  std::map<std::string, int> gpus_at_;  // of each task, by its address
  std::optional<std::string> visible_devices_;
};

}  // namespace tutti
