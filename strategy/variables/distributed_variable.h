// Base classes and helpers for variables with several components.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/replicas/local_replica.h"
#include "tutti/autograd/variable.h"

namespace tutti {
class StepTracer;
}  // namespace tutti

namespace tutti::internal {

/// Part of a DistributedStorage: memory on one device of this process, shards on several devices,
/// or shards on parameter servers. Not thread-safe: the owner of a component serializes writes.
class Component {
 public:
  virtual ~Component() = default;
  /// Returns the value; the returned tensor never changes.
  virtual Tensor read() const = 0;
  /// Returns the device on which read() returns its value.
  virtual Device device() const = 0;
  virtual void assign(AssignOp op, const Tensor& value) = 0;
  /// Applies a scatter operation. `name` is the variable's name, for messages.
  virtual void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) = 0;
  /// Applies `rule`. `slots` are the components of variables created by create_slot(), and are of
  /// the same kind as this one.
  virtual void update(std::span<Component* const> slots, const UpdateRule& rule,
                      const Gradient& gradient, const UpdateScalars& scalars) = 0;
};

/// Component stored on a device of this process.
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

/// Variable created by a strategy, with one component per device or per replica, or with a single
/// component that is shared by all replicas.
class DistributedStorage : public VariableStorage {
 public:
  int num_components() const { return static_cast<int>(components_.size()); }
  Component& component(int index) { return *components_[static_cast<std::size_t>(index)]; }
  const Component& component(int index) const {
    return *components_[static_cast<std::size_t>(index)];
  }
  /// Returns the component that replica `replica` reads.
  virtual int component_of_replica(int replica) const = 0;
  /// Returns "w" for component 0, "w/replica_1" for component 1.
  std::string component_name(int index) const;

  std::vector<Tensor> local_components() const override;
  std::vector<Device> devices() const override;
  /// Called when a write outside replicas changes component 0. `method` is the function that
  /// writes.
  virtual void note_write(std::string_view /*method*/,
                          std::initializer_list<Tensor> /*operands*/) const {}

 protected:
  DistributedStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                     const std::vector<Device>& component_devices);
  /// Uses existing components.
  DistributedStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner,
                     std::vector<std::unique_ptr<Component>> components);

  /// Returns the context of the replica that calls `method`; nullptr outside run().
  LocalReplicaContext* replica(std::string_view method) const {
    return LocalReplicaContext::current(*this, method);
  }
  /// Throws kFailedPrecondition if called inside a replica.
  void require_outside_replicas(std::string_view method) const;
  /// Applies `rule` to component `index`, with the same component of each slot.
  void update_component(int index, const UpdateRule& rule, std::span<const Variable> slots,
                        const Gradient& gradient, const UpdateScalars& scalars);

 private:
  std::vector<std::unique_ptr<Component>> components_;
};

/// One component of a variable as a separate variable, which Strategy::update() passes to its
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

/// Returns the SUM or MEAN of the replicas' values, on `destination`. Uses the strategy's operation
/// if there is one value for each replica of every worker, and each is on a CPU or its replica's
/// device. Otherwise, and if the strategy has been destroyed (`services` is nullptr), uses
/// "canonical".
Tensor reduce_values(const ReplicaServices* services, ReduceOp op, std::span<const Tensor> values,
                     Device destination);
/// Combines the replicas' values by the variable's aggregation, which must not be NONE. Otherwise
/// like reduce_values(). Throws kInvalidArgument, naming the variable and a remedy, if the
/// aggregation is MEAN and the values are integers that differ.
Tensor aggregate(const VariableStorage& variable, const ReplicaServices* services,
                 std::span<const Tensor> values, Device destination);
/// Same as aggregate(), but within a traced step, in which each replica has only its own value.
Tensor aggregate_in_trace(StepTracer& tracer, const VariableStorage& variable, const Tensor& value);

// Sharded variables, implemented in sharded_variable.cc.

/// Subset of a list of row indices: the rows that are in one part of a variable.
struct ListedRows {
  std::vector<std::int64_t> positions = {};  // positions of the selected rows in the list
  std::vector<std::int64_t> rows = {};       // row indices within the part
};
/// Returns the listed rows that belong to the part with rows [first, first + count).
ListedRows rows_within(std::int64_t first, std::int64_t count,
                       const std::vector<std::int64_t>& rows);
/// Returns the parts of a ShardedVariable; empty for any other variable.
std::span<const Variable> joined_parts(const Variable& variable);

}  // namespace tutti::internal
