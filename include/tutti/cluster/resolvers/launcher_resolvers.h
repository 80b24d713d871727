// Resolvers for launchers that describe the cluster in environment variables: MPI and SageMaker.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

struct MpiResolverOptions {
  /// Jobs and the number of tasks in each, assigned to the ranks in this order. Default: all are
  /// workers.
  std::vector<std::pair<std::string, int>> jobs = {};
};

/// Cluster of the ranks of an MPI job. Reads rank and size as set by Open MPI's mpirun
/// (OMPI_COMM_WORLD_RANK, _SIZE), MPICH and its derivatives (PMI_RANK, PMI_SIZE), or a PMIx
/// launcher (PMIX_RANK, SLURM_STEP_NUM_TASKS).
///
/// Launchers do not provide addresses, so every address is "". In a build with MPI, the ranks
/// connect through MPI. Throws kFailedPrecondition if no launcher's variables are set, and
/// kInvalidArgument if their numbers are inconsistent.
class MpiResolver : public ClusterResolver {
 public:
  explicit MpiResolver(const MpiResolverOptions& options = {},
                       const Environment& environment = Environment::of_process());

  std::string name() const override { return "MPI"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  /// Returns TUTTI_JOB_ID or the launcher's id of this run; "" if neither is set.
  std::string job_id() const override { return job_id_; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Return the rank among the processes on this host, and their number; nullopt if unknown.
  std::optional<int> local_rank() const { return local_rank_; }
  std::optional<int> local_size() const { return local_size_; }
  /// Returns true if all ranks are known to be on this host.
  bool is_one_host() const { return local_size_ == size_; }
  /// Returns the launcher's family: "Open MPI", "PMI" or "PMIx".
  const std::string& launcher() const { return launcher_; }

 private:
  ClusterSpec cluster_;
  std::string launcher_, job_id_;
  int rank_ = 0, size_ = 1;
  std::optional<int> local_rank_, local_size_;
};

/// Cluster of the hosts of a SageMaker job (tf's SageMakerClusterResolver). The sorted hosts of
/// SM_HOSTS, a JSON list, are workers on `port`; SM_CURRENT_HOST is this process. The cluster is
/// empty if the list lacks that host. Throws kFailedPrecondition "Not a SageMaker Environment" if
/// the variables are not set, and kInvalidArgument with the JSON path if they cannot be parsed.
class SageMakerResolver : public ClusterResolver {
 public:
  explicit SageMakerResolver(int port = 2223, const ResolverOverrides& overrides = {},
                             const Environment& environment = Environment::of_process());

  std::string name() const override { return "SageMaker"; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 protected:
  /// Returns "" if the cluster has at most one task.
  std::string find_master(const MasterQuery& query) const override;

 private:
  ClusterSpec cluster_;
};

}  // namespace tutti
