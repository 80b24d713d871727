// The ON_READ variable: a component per replica, combined when it is read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strategy/variables/distributed_variable.h"

namespace tutti::internal {

/// tf's SyncOnReadVariable: metrics, moving statistics. One component per replica; those of other
/// workers' replicas are with them, so with several workers reading from outside, saving and
/// AggregateOnReadScope are calls that all workers make.
class SyncOnReadStorage final : public DistributedStorage {
 public:
  /// `team`: the other workers; nullptr: there are none. `services`: of the strategy, which the
  /// variable may outlive.
  SyncOnReadStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                    const std::vector<Device>& replica_devices, std::shared_ptr<WorkerTeam> team,
                    std::weak_ptr<const ReplicaServices> services);

  /// In a replica its component (the aggregate inside an AggregateOnReadScope: a meeting). Outside
  /// the aggregate; kInvalidArgument with aggregation NONE and several replicas.
  Tensor read() const override;
  /// In a replica: local. Outside: to every component; with SUM assign() divides by the number of
  /// replicas (integers: the remainder goes to the first ones, so that the sum is exact) and
  /// assign_add(), assign_sub() throw kInvalidArgument.
  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  /// kUnimplemented in a replica.
  void scatter(ScatterOp op, const IndexedSlices& slices) override;
  Variable create_slot(const std::string& name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  /// With aggregation MEAN also the numbers of updates, as "<name>/replica_updates" (int64
  /// [replicas]).
  std::vector<NamedTensor> save() const override;
  void restore(const TensorLookup& lookup) override;
  int component_of_replica(int replica) const override { return replica; }
  /// Returns true for aggregation MEAN over several replicas.
  bool counts_updates() const {
    return options().aggregation == VariableAggregation::kMean && num_replicas() > 1;
  }
  /// Sets this process's components, which does not count as an update. Outside replicas.
  void set_components(std::span<const Tensor> values);

 private:
  /// The components of all replicas, in replica order, and the updates that each has received from
  /// its replica since all of them were set to one value.
  struct AllComponents {
    std::vector<Tensor> values;
    std::vector<std::int64_t> updates;
  };
  AllComponents all_components() const;
  Tensor aggregated() const;
  /// MEAN weights each component by its updates: that of a replica that never had rows does not
  /// count. Without any update all count alike.
  Tensor aggregated(const AllComponents& all) const;
  Tensor aggregated_by_all(LocalReplicaContext& context) const;
  void note_update(int index);
  int first_replica() const { return team_ ? team_->first_replica() : 0; }
  int num_replicas() const { return team_ ? team_->num_replicas() : num_components(); }
  /// What replica `replica` holds of `value` so that the components aggregate to it.
  Tensor share(const Tensor& value, int replica) const;
  Tensor share_of_component(const Tensor& value, int index) const {
    return share(value, first_replica() + index);
  }
  std::string key_of_replica(int replica) const { return concat(name(), "/replica_", replica); }
  std::string key_of_updates() const { return name() + "/replica_updates"; }

  std::vector<Device> replica_devices_;
  std::shared_ptr<WorkerTeam> team_;
  std::weak_ptr<const ReplicaServices> services_;
  std::vector<std::int64_t> updates_;  // of each component; each replica writes its own
};

/// Lets replicas read the aggregate of ON_READ variables with aggregation MEAN (moving averages)
/// while it lives: what evaluation computes with must not depend on which replicas had rows in
/// training. Afterwards the components are as before. Collective. Outside replicas.
class AggregatedComponents {
 public:
  explicit AggregatedComponents(std::span<const Variable> variables);
  ~AggregatedComponents();
  AggregatedComponents(const AggregatedComponents&) = delete;
  AggregatedComponents& operator=(const AggregatedComponents&) = delete;

 private:
  struct Kept {
    Variable variable;
    std::vector<Tensor> components;
  };
  std::vector<Kept> kept_;
};

}  // namespace tutti::internal
