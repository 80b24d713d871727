// ON_READ variable: one component per replica; reading the variable combines them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strategy/variables/distributed_variable.h"

namespace tutti::internal {

/// Storage of a variable such as a metric or a moving statistic, like tf's SyncOnReadVariable. Each
/// replica has one component, and each worker stores those of its replicas. With several workers,
/// saves, reads outside run() and AggregateOnReadScope are therefore collective.
class SyncOnReadStorage final : public DistributedStorage {
 public:
  /// `team`: all workers; nullptr if there is only this process. `services` belong to the strategy,
  /// which the variable may outlive.
  SyncOnReadStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                    const std::vector<Device>& replica_devices, std::shared_ptr<WorkerTeam> team,
                    std::weak_ptr<const ReplicaServices> services);

  /// In a replica, returns the replica's component or, within an AggregateOnReadScope, the
  /// aggregate (by a rendezvous). Outside replicas, returns the aggregate; throws kInvalidArgument
  /// if there are several replicas and the aggregation is NONE.
  Tensor read() const override;
  /// In a replica, writes the replica's component. Outside replicas, writes every component. With
  /// SUM, assign() then divides by the number of replicas (for integers the first components get
  /// the remainder, so the sum is exact), and assign_add() and assign_sub() throw kInvalidArgument.
  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  /// Throws kUnimplemented if called in a replica while there are several replicas.
  void scatter(ScatterOp op, const IndexedSlices& slices) override;
  Variable create_slot(const std::string& name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  /// With aggregation MEAN, also saves each replica's number of updates, as
  /// "<name>/replica_updates" (int64 [replicas]).
  std::vector<NamedTensor> save() const override;
  void restore(const TensorLookup& lookup) override;
  int component_of_replica(int replica) const override { return replica; }
  /// Returns true for aggregation MEAN over several replicas.
  bool counts_updates() const {
    return options().aggregation == VariableAggregation::kMean && num_replicas() > 1;
  }
  /// Sets this process's components; this does not count as an update. Must be called outside
  /// replicas.
  void set_components(std::span<const Tensor> values);

 private:
  /// Components of all replicas, in replica order, and the number of updates that each has received
  /// from its replica since all were last set to the same value.
  struct AllComponents {
    std::vector<Tensor> values;
    std::vector<std::int64_t> updates;
  };
  AllComponents all_components() const;
  Tensor aggregated() const;
  /// Returns the aggregate. MEAN weights each component by its number of updates, so a replica that
  /// never had rows has weight 0. If no component was updated, all have equal weight.
  Tensor aggregated(const AllComponents& all) const;
  Tensor aggregated_by_all(LocalReplicaContext& context) const;
  void note_update(int index);
  int first_replica() const { return team_ ? team_->first_replica() : 0; }
  int num_replicas() const { return team_ ? team_->num_replicas() : num_components(); }
  /// Returns replica `replica`'s share of `value`, such that the shares aggregate to `value`.
  Tensor share(const Tensor& value, int replica) const;
  Tensor share_of_component(const Tensor& value, int index) const {
    return share(value, first_replica() + index);
  }
  std::string key_of_replica(int replica) const { return concat(name(), "/replica_", replica); }
  std::string key_of_updates() const { return name() + "/replica_updates"; }

  std::vector<Device> replica_devices_;
  std::shared_ptr<WorkerTeam> team_;
  std::weak_ptr<const ReplicaServices> services_;
  std::vector<std::int64_t> updates_;  // per component; each replica writes only its own entry
};

/// Scope that sets ON_READ variables with aggregation MEAN (moving averages) to their aggregate,
/// and restores the components at its end. Evaluation then does not depend on which replicas had
/// rows in training. Collective. Use it outside replicas.
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
