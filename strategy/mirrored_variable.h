// The ON_WRITE variable: equal components, kept equal by every write.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/distributed_variable.h"
#include "tutti/strategy/local_strategy.h"

namespace tutti::internal {

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

 protected:
  const std::shared_ptr<const Placement>& placement() const { return placement_; }
  int work_number() const { return work_number_; }
  /// Calls write(component index) for each component that the caller has to write: all outside run;
  /// in a replica that of its device when this variable's work falls to it.
  void for_each_own_component(std::string_view method, const std::function<void(int)>& write);

 private:
  /// aggregation NONE in a replica: an error unless divergence is permitted; writes this device's
  /// component.
  void write_divergent(int replica, std::string_view method, const std::function<void(int)>& write);
  bool is_alone(const LocalReplicaContext& context) const { return context.num_exchanging() == 1; }

  std::shared_ptr<const Placement> placement_;
  const int work_number_;
};

}  // namespace tutti::internal
