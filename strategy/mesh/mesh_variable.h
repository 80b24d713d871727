// Variables of a mesh strategy: each device stores the parts that its positions use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/mesh/mesh_position.h"
#include "tutti/autograd/variable.h"
#include "tutti/autograd/variable_storage.h"

namespace tutti::internal {

class MeshExplanation;

/// Layout of a variable on a mesh, and the objects that exchange its parts.
struct MeshPlacement {
  const MeshGrid& grid;
  const ReplicaServices& services;
  MeshGroups& groups;
  std::shared_ptr<ReadAhead> reads;  // nullptr for one process
  AxisSet gathered = 0;              // axes over which a read gathers
  bool reads_again = true;           // MeshOptions::reshard_after_forward
  Sharding sharding = {};            // sharding of the stored elements
};

/// Storage of a variable of a mesh strategy. Positions on one device that have the same elements
/// share one stored shard; only the first of these positions writes it. Outside steps, reads return
/// the full value; with several workers, they are collective.
class MeshStorage final : public VariableStorage, public GatheredVariable {
 public:
  /// Requires: the objects that `placement` refers to outlive the variable.
  MeshStorage(const Tensor& initial_value, VariableOptions options, const void* owner,
              const MeshPlacement& placement);
  /// Fills the variable with `value`, without creating the full tensor.
  MeshStorage(const Shape& shape, DType dtype, double value, VariableOptions options,
              const void* owner, const MeshPlacement& placement);

  ~MeshStorage() override;

  const Sharding& sharding() const { return placement_.sharding; }
  /// Returns the sharding of the value that a step reads.
  Sharding read_sharding() const;
  Tensor read() const override { return read_as(dtype()); }
  /// Casts elements to `dtype` before the exchange, but only if other positions need them.
  Tensor read_as(DType dtype) const override;
  std::optional<std::uint64_t> released_version() const override;
  StartedGather start_gather(DType dtype) const override;
  std::vector<Tensor> local_components() const override;
  std::vector<Device> devices() const override;
  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  void scatter(ScatterOp op, const IndexedSlices& slices) override;
  Variable create_slot(const std::string& name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  std::vector<NamedTensor> save() const override { return {{name(), read()}}; }
  void restore(const TensorLookup& lookup) override;

 private:
  struct Part {
    int writer = 0;  // the first local position that has the part
    VariableComponent component;
  };

  /// Returns `part` as `dtype`, on its device, without recording on a tape.
  static Tensor cast_part(const Tensor& part, DType dtype);
  /// Creates the parts. make(position, device) returns a position's part.
  void make_parts(const std::function<Tensor(int position, Device device)>& make);
  /// Records the variable in this thread's explanation and returns that explanation, or nullptr if
  /// the thread has none.
  MeshExplanation* note(bool is_slot) const;
  /// Returns the part of `whole` that is stored at position `position`.
  Tensor cut(const Tensor& whole, int position) const;
  Tensor whole() const;
  VariableComponent& component_of(const MeshPosition& position);
  const VariableComponent& component_of(const MeshPosition& position) const;
  bool writes(const MeshPosition& position) const;
  int first_position() const { return placement_.services.first_replica(); }
  std::vector<MeshStorage*> storages_of(std::span<const Variable> slots, const UpdateRule& rule);
  void update_with_norms(std::span<MeshStorage* const> slots, const UpdateRule& rule,
                         const std::vector<Gradient>& gradients, const UpdateScalars& scalars);

  const MeshPlacement placement_;
  std::vector<Part> parts_;
  std::vector<std::size_t> part_of_position_;  // indexed by local position
};

}  // namespace tutti::internal
