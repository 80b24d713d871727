// Several resolvers as one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// tf's UnionClusterResolver. Task, environment, layer and accelerators are those of the first.
/// Jobs are joined; two lists of one job are put one behind the other; as soon as one of them has
/// indices of its own, indices are kept, lists counting from 0, and one index given twice is an
/// error (kAlreadyExists naming both addresses). The resolvers are read now and not kept. Throws
/// kInvalidArgument for none.
class UnionResolver : public ClusterResolver {
 public:
  explicit UnionResolver(const std::vector<const ClusterResolver*>& resolvers,
                         const ResolverOverrides& overrides = {});

  std::string name() const override { return "UnionResolver"; }
  ClusterSpec cluster_spec() const override { return cluster_; }
  std::string job_id() const override { return job_id_; }

 protected:
  /// The address of a task only when type and id are asked for; else the first resolver's master.
  std::string find_master(const MasterQuery& query) const override;
  std::map<std::string, int> find_accelerators(const std::optional<Task>& other) const override;

 private:
  ClusterSpec cluster_;
  std::string first_master_, job_id_;
  // Of this process (no task), and of the tasks of which the first resolver says so.
  std::map<std::optional<Task>, std::map<std::string, int>> num_accelerators_;
};

}  // namespace tutti
