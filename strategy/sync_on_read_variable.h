// The ON_READ variable: each replica writes its own component; a read from outside combines them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/distributed_variable.h"

namespace tutti::internal {

/// tf's SyncOnReadVariable: metrics, moving statistics. One component per replica; those of other
/// workers' replicas are with them, so with several workers reading from outside, saving and
/// AggregateOnReadScope are calls that all workers make.
class SyncOnReadStorage final : public DistributedStorage {
 public:
  /// `team`: the other workers; nullptr: there are none.
  SyncOnReadStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                    const std::vector<Device>& replica_devices,
                    std::shared_ptr<WorkerTeam> team = nullptr);

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
  std::vector<NamedTensor> save() const override;
  void restore(const TensorLookup& lookup) override;
  int component_of_replica(int replica) const override { return replica; }

 private:
  Tensor aggregated() const;
  Tensor aggregated_by_all(LocalReplicaContext& context) const;
  /// The components of all replicas, in replica order.
  std::vector<Tensor> all_components() const;
  int first_replica() const { return team_ ? team_->first_replica() : 0; }
  int num_replicas() const { return team_ ? team_->num_replicas() : num_components(); }
  /// What replica `replica` holds of `value` so that the components aggregate to it.
  Tensor share(const Tensor& value, int replica) const;
  Tensor share_of_component(const Tensor& value, int index) const {
    return share(value, first_replica() + index);
  }
  std::string key_of_replica(int replica) const { return concat(name(), "/replica_", replica); }

  std::vector<Device> replica_devices_;
  std::shared_ptr<WorkerTeam> team_;
};

}  // namespace tutti::internal
