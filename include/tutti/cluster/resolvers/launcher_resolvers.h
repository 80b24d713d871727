// Clusters as launchers made them, from the variables that they set: MPI's, and SageMaker's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

struct MpiResolverOptions {
  /// Jobs and their numbers of tasks, given to the ranks in this order. Empty: all are workers.
  std::vector<std::pair<std::string, int>> jobs = {};
};

/// Rank and size under mpirun of Open MPI (OMPI_COMM_WORLD_RANK, _SIZE), of MPICH and its relatives
/// (PMI_RANK, PMI_SIZE) or of a PMIx launcher (PMIX_RANK with SLURM_STEP_NUM_TASKS or PMIX_SIZE).
///
/// Launchers do not tell a rank where the others are, so every address is "": the ranks meet
/// through MPI itself, where the build has it, and tell each other. Throws
/// kFailedPrecondition without a launcher's variables, kInvalidArgument for numbers that make no
/// sense.
class MpiResolver : public ClusterResolver {
 public:
  explicit MpiResolver(const MpiResolverOptions& options = {},
                       const Environment& environment = Environment::of_process());

  std::string name() const override { return "MPI"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  /// The launcher's name of this run; "" if it has none.
  std::string job_id() const override { return job_id_; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Place among the ranks of this host and their number; nothing where the launcher does not say.
  std::optional<int> local_rank() const { return local_rank_; }
  std::optional<int> local_size() const { return local_size_; }
  /// Whether all ranks are known to be on this host.
  bool is_one_host() const { return local_size_ == size_; }
  /// Whose variables: "Open MPI", "PMI", "PMIx".
  const std::string& launcher() const { return launcher_; }

 private:
  ClusterSpec cluster_;
  std::string launcher_, job_id_;
  int rank_ = 0, size_ = 1;
  std::optional<int> local_rank_, local_size_;
};

/// tf's SageMakerClusterResolver: SM_HOSTS, a JSON list, sorted, all workers on `port`; this
/// process is the one at SM_CURRENT_HOST. A current host that is not in the list gives an empty
/// cluster. Throws kFailedPrecondition "Not a SageMaker Environment" without the variables,
/// kInvalidArgument with the JSON path for what cannot be read.
class SageMakerResolver : public ClusterResolver {
 public:
  explicit SageMakerResolver(int port = 2223, const ResolverOverrides& overrides = {},
                             const Environment& environment = Environment::of_process());

  std::string name() const override { return "SageMaker"; }
  ClusterSpec cluster_spec() const override { return cluster_; }

 protected:
  /// "" for a cluster of at most one task.
  std::string find_master(const MasterQuery& query) const override;

 private:
  ClusterSpec cluster_;
};

}  // namespace tutti
