// A variable on parameter servers: one logical value, in shards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/strategy/distributed_variable.h"
#include "tutti/strategy/parameter_server/client/sharded_component.h"

namespace tutti::internal {

/// Every replica reads and writes the same values; what replicas assign is combined as in a
/// mirrored variable. tf's AggregatingVariable and ShardedVariable.
class ShardedStorage final : public MirroredStorage {
 public:
  /// The shards were created. `placement`: central, on the host.
  ShardedStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner,
                 std::shared_ptr<const Placement> placement, int work_number,
                 std::shared_ptr<ParameterServers> servers, std::vector<RemoteShard> shards);

  /// Once in a CachedReadsScope.
  Tensor read() const override;
  bool reads_rows() const override { return true; }
  Tensor read_rows(const Tensor& rows) const override { return remote().read_rows(rows); }
  void assign_replicated(AssignOp op, const Tensor& value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  /// Of workers that train apart, the first one's counts.
  void restore(const TensorLookup& lookup) override;
  /// Beside the shards of this variable: the same rows on the same servers.
  Variable create_slot(const std::string& name, double initial_value) override;

  const std::vector<RemoteShard>& shards() const { return remote().shards(); }
  const ShardedComponent& remote() const {
    return static_cast<const ShardedComponent&>(component(0));
  }

 private:
  ShardedComponent& remote() { return static_cast<ShardedComponent&>(component(0)); }

  const std::shared_ptr<ParameterServers> servers_;
};

/// Makes the shards on their servers and returns when they are there. `initial`: of the whole
/// variable.
void create_shards(ParameterServers& servers, const std::vector<RemoteShard>& shards,
                   const std::variant<ValueGenerator, Tensor>& initial);

}  // namespace tutti::internal
