// Exchanges of values, across threads and workers, between mesh positions that differ only in some
// axes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strategy/mesh/sharding.h"
#include "strategy/replicas/local_replica.h"
#include "strategy/variables/read_ahead.h"
#include "tutti/strategy/mesh/mesh_strategy.h"

namespace tutti::internal {

/// Purpose of an exchange, which determines the bytes that it needs to move.
enum class ExchangeKind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendReceive,
  kBroadcast,
  kReduce,
};
/// Returns "all_reduce", ...
const char* to_string(ExchangeKind kind);

/// Returns part `index` of the value, split along `dim` into `count` equal parts; a view if dim is
/// 0.
Tensor part_along(const Tensor& value, int dim, int count, int index);

/// Values to be summed across the positions that differ in `axes`.
struct MeshSum {
  AxisSet axes = 0;
  AxisSet parts = 0;  // subset of `axes` that shards dimension `dim` of results; 0: none
  int dim = 0;
  std::vector<Tensor> own = {};  // indexed by local position; all of the same shape and dtype
};

/// Sums that were started together. Used by one thread at a time.
class MeshSums {
 public:
  MeshSums();
  /// Creates completed sums with these results.
  explicit MeshSums(std::vector<std::vector<Tensor>> results);
  ~MeshSums();
  /// Waits for the sums and returns their results, indexed by sum and then by the position within
  /// this process. Call it only once.
  std::vector<std::vector<Tensor>> wait();

 private:
  friend class MeshGroups;
  struct OverWorkers;  // sums that one collective computes
  std::vector<std::vector<Tensor>> results_;
  std::vector<std::unique_ptr<OverWorkers>> over_workers_;
};

/// Exchanges within the groups of a mesh. A *group* of an axis set consists of the positions that
/// differ only in these axes. Values are sent only between workers that share a group. A sum first
/// adds the values of a worker's own positions if they are consecutive in the canonical order. Used
/// by one thread at a time, which must hold the values of all positions of its process. With
/// several workers, all must make the same calls. `own` holds one value per position of this
/// process, all of one shape and dtype.
class MeshGroups {
 public:
  /// `grid` and `services` must outlive this object. The devices of a worker must form a box in the
  /// mesh (fits()).
  MeshGroups(const MeshGrid& grid, const ReplicaServices& services)
      : grid_(grid), services_(services) {}
  virtual ~MeshGroups() = default;

  /// Returns true if every block of `count` consecutive devices, starting at a multiple of `count`,
  /// forms a box in the mesh.
  static bool fits(const DeviceMesh& devices, int count);

  /// Returns, for each position of this process, the values of its group's members in index order.
  virtual std::vector<std::vector<Tensor>> gather(AxisSet axes, const std::vector<Tensor>& own,
                                                  const std::string& name);
  /// Returns true if gather(axes, ...) needs values from other workers.
  bool needs_workers(AxisSet axes) const;
  /// Starts the message exchange for gather(). Requires: needs_workers(axes).
  StartedGather start_gather(AxisSet axes, const std::vector<Tensor>& own, const std::string& name);
  /// Returns the result of gather(). `received`: the result of start_gather(axes, own, ...), or an
  /// undefined tensor if needs_workers(axes) is false.
  std::vector<std::vector<Tensor>> by_group(AxisSet axes, const std::vector<Tensor>& own,
                                            const Tensor& received);
  /// Splits each value along `dim` into one part per member of its group. Returns, for each
  /// position of this process, the parts that it receives, ordered by the senders' indices in the
  /// group.
  virtual std::vector<std::vector<Tensor>> all_to_all(AxisSet axes, int dim,
                                                      const std::vector<Tensor>& own,
                                                      const std::string& name);
  /// Returns, for each position of this process, the value of member senders[i] of that position's
  /// group, where i is the index of the position.
  virtual std::vector<Tensor> receive(AxisSet axes, const std::vector<int>& senders,
                                      const std::vector<Tensor>& own, const std::string& name);
  /// Starts sums, whose terms are added in canonical order. Sums across several workers run while
  /// the caller continues.
  virtual std::shared_ptr<MeshSums> start_sums(const std::vector<MeshSum>& sums,
                                               const std::string& name);
  /// Returns, for each position of this process, the combination of its group's values. `op` must
  /// not be SUM.
  virtual std::vector<Tensor> combine(AxisSet axes, ReduceOp op, const std::vector<Tensor>& own,
                                      const std::string& name);
  /// Counts an exchange in which each position had a value of `bytes` bytes.
  virtual void count(ExchangeKind kind, AxisSet axes, std::uint64_t bytes);
  const std::map<std::string, MeshTraffic>& traffic() const { return traffic_; }

 private:
  /// Workers that share this worker's groups for one axis set, including this worker itself.
  struct Workers {
    std::vector<int> members;
    bool are_in_order = true;  // each worker's values are consecutive in the canonical order
    std::unique_ptr<Communicator> communicator;  // nullptr if this worker is alone
    std::uint64_t connection = 0;  // WorkerTeam::connection() when `communicator` was made
  };
  Workers& workers_of(AxisSet axes);
  int num_own() const { return static_cast<int>(services_.replica_devices.size()); }
  int first_own() const { return services_.first_replica(); }
  int worker_of(int position) const { return position / num_own(); }
  Device device_of(int position) const {
    return services_.replica_devices[static_cast<std::size_t>(position - first_own())];
  }
  /// Returns, for each group with members in this process, the positions of these members in index
  /// order.
  std::vector<std::vector<int>> own_groups(AxisSet axes) const;
  /// Returns the positions that `worker` has in the group of `position`, in index order.
  std::vector<int> members_of(int position, AxisSet axes, int worker) const;
  std::vector<Tensor> sum_here(const MeshSum& sum) const;
  std::vector<Tensor> sum_gathered(const MeshSum& sum, const std::string& name);
  void start_over_workers(MeshSums::OverWorkers& together, const std::vector<MeshSum>& sums,
                          const std::string& name);

  const MeshGrid& grid_;
  const ReplicaServices& services_;
  std::map<AxisSet, Workers> workers_;
  std::map<std::string, MeshTraffic> traffic_;  // sent by all positions, keyed by kind
};

}  // namespace tutti::internal
