// ON_WRITE variable: components that every write keeps equal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/variables/distributed_variable.h"
#include "tutti/strategy/variables/placement.h"

namespace tutti::internal {

/// Storage of an ON_WRITE variable. Corresponds to tf's MirroredVariable, or to its
/// AggregatingVariable if replicas share one component.
class MirroredStorage : public DistributedStorage {
 public:
  /// `work_number`, modulo the number of replicas that share a component, selects the replica that
  /// applies updates, to spread the work.
  MirroredStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
                  std::shared_ptr<const Placement> placement, int work_number);
  /// Uses existing components, one per device of the placement.
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
  /// Records the write, so that the next step compares it with the other workers' writes. Does
  /// nothing if there is only one worker, if the variable may diverge, or inside a merge function,
  /// whose writes are part of a step.
  void note_write(std::string_view method, std::initializer_list<Tensor> operands) const override;

 protected:
  int work_number() const { return work_number_; }
  /// Calls write(component index) for each component that the caller must write: outside run, all
  /// components; in a replica, the component of the replica's device, or none if another replica
  /// updates it.
  void for_each_own_component(std::string_view method, const std::function<void(int)>& write);

 private:
  /// Outside run, or if there is a single replica, calls write(component index) for all components.
  /// With aggregation NONE, only the first replica on a device writes, to the device's component;
  /// throws kFailedPrecondition unless divergence is allowed. Returns false if the caller must
  /// combine the values of all replicas.
  bool writes_alone(const LocalReplicaContext* context, std::string_view method,
                    const std::function<void(int)>& write);

  std::shared_ptr<const Placement> placement_;
  const int work_number_;
};

}  // namespace tutti::internal
