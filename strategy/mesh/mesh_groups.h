// Exchanges between the positions of a mesh that differ in some axes, over threads and workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cross_device_ops/communicator/partial_sums.h"
#include "strategy/mesh/sharding.h"
#include "strategy/replicas/local_replica.h"

namespace tutti::internal {

/// A *group* of an axis set consists of the positions that differ in these axes only. Values travel
/// only between workers that share a group, and sums of a worker's own positions are added before
/// they travel. Used by one thread at a time, which has the values of all positions of its process;
/// with several workers, all make the same calls.
class MeshGroups {
 public:
  /// Both must outlive it.
  MeshGroups(const MeshGrid& grid, const ReplicaServices& services)
      : grid_(grid), services_(services) {}

  /// Returns, for each position of this process, the values of its group by index. `own`: one value
  /// per position of this process, of one shape and dtype.
  std::vector<std::vector<Tensor>> gather(AxisSet axes, const std::vector<Tensor>& own,
                                          const std::string& name);
  /// Returns, for each position of this process, the combination of its group's values.
  std::vector<Tensor> reduce(AxisSet axes, ReduceOp op, const std::vector<Tensor>& own,
                             const std::string& name);

 private:
  /// Workers that share groups of an axis set, directly or through others.
  struct Workers {
    std::vector<int> members;
    std::unique_ptr<Communicator> communicator;  // nullptr: this worker alone
    std::uint64_t connection = 0;                // of the team, when the communicator was made
  };
  Workers& workers_of(AxisSet axes);
  int num_own() const { return static_cast<int>(services_.replica_devices.size()); }
  int worker_of(int position) const { return position / num_own(); }
  Tensor sum_over_workers(Workers& workers, const std::vector<int>& group,
                          const std::vector<Tensor>& own, const std::string& name);

  const MeshGrid& grid_;
  const ReplicaServices& services_;
  std::map<AxisSet, Workers> workers_;
};

}  // namespace tutti::internal
