// The cluster of a SageMaker training job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

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
