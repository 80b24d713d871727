// Variables with several components: what they have in common, the ON_WRITE and the ON_READ one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strategy/replicas/local_replica.h"
#include "tutti/autograd/variable.h"
#include "tutti/strategy/local_strategy.h"

namespace tutti {
class StepTracer;
}  // namespace tutti

namespace tutti::internal {

/// What a DistributedStorage is made of: memory of a device of this process, or shards on parameter
/// servers. Not synchronised: whoever owns it keeps writes apart.
class Component {
 public:
  virtual ~Component() = default;
  /// A tensor that was read never changes.
  virtual Tensor read() const = 0;
  /// Where read() puts it.
  virtual Device device() const = 0;
  virtual void assign(AssignOp op, const Tensor& value) = 0;
  /// `name` of the variable, for messages.
  virtual void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) = 0;
  /// `slots` are components of the same kind, of variables that create_slot() made.
  virtual void update(std::span<Component* const> slots, const UpdateRule& rule,
                      const Gradient& gradient, const UpdateScalars& scalars) = 0;
};

/// In memory of a device of this process.
class LocalComponent final : public Component {
 public:
  LocalComponent(const Tensor& initial_value, Device device)
      : component_(initial_value.to(device), device) {}
  Tensor read() const override { return component_.read(); }
  Device device() const override { return component_.device(); }
  void assign(AssignOp op, const Tensor& value) override { component_.assign(op, value); }
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) override {
    component_.scatter(op, slices, name);
  }
  void update(std::span<Component* const> slots, const UpdateRule& rule, const Gradient& gradient,
              const UpdateScalars& scalars) override;

 private:
  VariableComponent component_;
};

/// What a storage is besides that is made of other variables: that of a ShardedVariable.
class MadeOfVariables {
 public:
  virtual ~MadeOfVariables() = default;
  /// At least one.
  virtual std::span<const Variable> parts() const = 0;
};

/// A variable that a LocalStrategy made: a component per device or per replica, or one elsewhere.
class DistributedStorage : public VariableStorage {
 public:
  int num_components() const { return static_cast<int>(components_.size()); }
  Component& component(int index) { return *components_[static_cast<std::size_t>(index)]; }
  const Component& component(int index) const {
    return *components_[static_cast<std::size_t>(index)];
  }
  /// The component that replica `replica` reads.
  virtual int component_of_replica(int replica) const = 0;
  /// "w" for component 0, "w/replica_1" for the next.
  std::string component_name(int index) const;

  std::vector<Tensor> local_components() const override;
  std::vector<Device> devices() const override;
  /// Called where a write outside replicas changes component 0: by `method`, with these operands.
  virtual void note_write(std::string_view /*method*/,
                          std::initializer_list<Tensor> /*operands*/) const {}

 protected:
  DistributedStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                     const std::vector<Device>& component_devices);
  /// Of components that there are.
  DistributedStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner,
                     std::vector<std::unique_ptr<Component>> components);

  /// The replica that calls `method`; nullptr outside run.
  LocalReplicaContext* replica(std::string_view method) const {
    return LocalReplicaContext::current(*this, method);
  }
  /// Throws kFailedPrecondition inside a replica.
  void require_outside_replicas(std::string_view method) const;
  /// Applies `rule` to component `index`, with the same component of each slot.
  void update_component(int index, const UpdateRule& rule, std::span<const Variable> slots,
                        const Gradient& gradient, const UpdateScalars& scalars);

 private:
  std::vector<std::unique_ptr<Component>> components_;
};

/// One component of a variable as a variable of its own: what Strategy::update() hands to its
/// function.
class ComponentStorage final : public VariableStorage {
 public:
  ComponentStorage(std::shared_ptr<VariableStorage> whole, DistributedStorage& storage, int index);

  Tensor read() const override { return component().read(); }
  std::vector<Tensor> local_components() const override { return {read()}; }
  std::vector<Device> devices() const override { return {component().device()}; }
  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  void scatter(ScatterOp op, const IndexedSlices& slices) override;
  Variable create_slot(const std::string& name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  std::vector<NamedTensor> save() const override;
  void restore(const TensorLookup& lookup) override;

 private:
  Component& component() const { return storage_.component(index_); }

  std::shared_ptr<VariableStorage> whole_;  // keeps storage_ alive
  DistributedStorage& storage_;
  const int index_;
};

/// The values of all replicas as one, by the variable's aggregation (not NONE), on `destination`.
/// Integers under MEAN must be equal: throws kInvalidArgument naming variable and remedy.
Tensor aggregate(const VariableStorage& variable, std::span<const Tensor> values,
                 Device destination);
/// The same within a traced step, in which each replica has its own value alone.
Tensor aggregate_in_trace(StepTracer& tracer, const VariableStorage& variable, const Tensor& value);

/// tf's MirroredVariable, and with one component for many replicas its AggregatingVariable (central
/// storage).
class MirroredStorage : public DistributedStorage {
 public:
  /// `work_number`: which of the replicas that share a component applies updates, modulo their
  /// number; spreads the work.
  MirroredStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                  std::shared_ptr<const Placement> placement, int work_number);
  /// Of components that there are, as many as the placement has devices.
  MirroredStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner,
                  std::shared_ptr<const Placement> placement, int work_number,
                  std::vector<std::unique_ptr<Component>> components);

  Tensor read() const override;
  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  void scatter(ScatterOp op, const IndexedSlices& slices) override;
  Variable create_slot(const std::string& name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  std::vector<NamedTensor> save() const override;
  void restore(const TensorLookup& lookup) override;
  int component_of_replica(int replica) const override {
    return placement_->component_of_replica[static_cast<std::size_t>(replica)];
  }

  const std::shared_ptr<const Placement>& placement() const { return placement_; }
  /// With other workers, compares the write with theirs in the next step. Writes in merge functions
  /// are parts of a step.
  void note_write(std::string_view method, std::initializer_list<Tensor> operands) const override;

 protected:
  int work_number() const { return work_number_; }
  /// Calls write(component index) for each component that the caller has to write: all outside run;
  /// in a replica that of its device when this variable's work falls to it.
  void for_each_own_component(std::string_view method, const std::function<void(int)>& write);

 private:
  /// Calls write(component index) for all components outside run and in the only replica; with
  /// aggregation NONE for this device's, an error unless divergence is permitted. Whether it did:
  /// else the values of all replicas are combined.
  bool writes_alone(const LocalReplicaContext* context, std::string_view method,
                    const std::function<void(int)>& write);

  std::shared_ptr<const Placement> placement_;
  const int work_number_;
};

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
