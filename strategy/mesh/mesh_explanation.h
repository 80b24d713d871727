// Support for explaining the steps of a mesh: tensors without elements, and exchanges that are only
// counted.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strategy/mesh/mesh_groups.h"
#include "strategy/mesh/sharding.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/strategy/mesh/mesh_strategy.h"

namespace tutti::internal {

/// Tracer that runs a step for the first local position of a mesh, on shapes alone: the results of
/// local operations are placeholders, whose lifetimes give the peak memory use. Used by one thread.
class MeshExplanation final : public StepTracer {
 public:
  /// `grid` is the grid of blocks. The references must outlive the object.
  MeshExplanation(const MeshGrid& grid, const MeshOptions& options,
                  const ReplicaServices& services);
  /// Returns the explanation that is tracing this thread's step; nullptr if there is none.
  static MeshExplanation* current();

  Device device() const { return services_.replica_devices.front(); }
  int position() const { return services_.first_replica(); }
  const MeshGrid& grid() const { return grid_; }
  /// Counts everything created on the device from now on as the step's memory.
  void begin_step() { is_in_step_ = true; }
  /// Returns a tensor of this spec that stores no elements. If `counts` is true, the bytes that its
  /// elements would take count towards the step's memory.
  Tensor without_elements(const TensorSpec& spec, Device device, bool counts);

  /// Records a variable. `bytes` is the size of its parts on the device.
  void note_variable(const VariableStorage& storage, const Sharding& sharding, std::uint64_t bytes,
                     bool is_slot);
  /// Records this position's part of a gradient.
  void note_gradient(const VariableStorage& storage, const Gradient& gradient);
  /// Records how many bytes a device sends to gather the inputs of an operation.
  void note_gathered(const OpCall& call, std::uint64_t bytes);
  std::uint64_t bytes_gathered() const { return bytes_gathered_; }
  /// Records an exchange in which each position has a value of `bytes` bytes.
  void note_exchange(ExchangeKind kind, AxisSet axes, std::uint64_t bytes);
  MeshReport report() const;

  // StepTracer.
  std::vector<Tensor> run(const OpCall& call) override;
  std::vector<Tensor> update(const DeviceRule& rule, std::span<const Tensor> values,
                             const Tensor& gradient) override;
  std::vector<Tensor> all_reduce(ReduceOp op, std::span<const Tensor> values,
                                 const SourceLocation& where) override;
  Tensor all_gather(const Tensor& value, int axis, const SourceLocation& where) override;
  void note_variable(const Tensor&) override {}
  bool holds(const Tensor& value) const override;
  std::optional<Tensor> create(const TensorSpec& spec, Device device, const Tensor* value) override;

 private:
  struct Noted {
    MeshReport::VariableCost cost;
    bool is_slot = false;
    bool is_whole = false;
    std::uint64_t gradient_bytes = 0;
  };
  /// Bytes of the live placeholders.
  struct Memory {
    std::atomic<std::uint64_t> in_use = 0;
    std::uint64_t peak = 0;
  };
  class Placeholder;

  void warn_of_layouts(MeshReport& report) const;

  const MeshGrid& grid_;
  const MeshOptions& options_;
  const ReplicaServices& services_;
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  bool is_in_step_ = false;
  std::uint64_t bytes_gathered_ = 0;
  std::map<std::uint64_t, Noted> variables_;  // keyed by id
  MeshReport report_;                         // only the member `collectives` is set
  struct Gathered {
    int count = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::string, Gathered> gathered_;  // keyed by operation and line
};

/// MeshGroups that records the explained position's exchanges instead of executing them.
class ExplainedGroups final : public MeshGroups {
 public:
  ExplainedGroups(MeshExplanation& explanation, const ReplicaServices& services)
      : MeshGroups(explanation.grid(), services), explanation_(explanation) {}
  std::vector<std::vector<Tensor>> gather(AxisSet axes, const std::vector<Tensor>& own,
                                          const std::string& name) override;
  std::vector<std::vector<Tensor>> all_to_all(AxisSet axes, int dim, const std::vector<Tensor>& own,
                                              const std::string& name) override;
  std::vector<Tensor> receive(AxisSet axes, const std::vector<int>& senders,
                              const std::vector<Tensor>& own, const std::string& name) override;
  std::shared_ptr<MeshSums> start_sums(const std::vector<MeshSum>& sums,
                                       const std::string& name) override;
  std::vector<Tensor> combine(AxisSet axes, ReduceOp op, const std::vector<Tensor>& own,
                              const std::string& name) override;
  void count(ExchangeKind kind, AxisSet axes, std::uint64_t bytes) override;

 private:
  Tensor result(const Shape& shape, const Tensor& like);

  MeshExplanation& explanation_;
};

}  // namespace tutti::internal
