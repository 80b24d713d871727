// A variable on parameter servers: one logical value, in shards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/client/parameter_servers.h"
#include "strategy/variables/mirrored_variable.h"

namespace tutti::internal {

/// Reads join the shards; changes go to each shard's server, cut into its rows. Of several workers
/// that train together all call assign() and scatter(), and the first one changes the values for
/// all; update() and assign_by_one() are called by one of them, and all then call
/// ParameterServers::meet(). Threads: any.
class ShardedComponent final : public Component {
 public:
  /// The shards were created.
  ShardedComponent(std::shared_ptr<ParameterServers> servers, std::vector<RemoteShard> shards);

  Tensor read() const override { return servers_->read(cache_); }
  Device device() const override { return Device{}; }
  void assign(AssignOp op, const Tensor& value) override;
  void assign_by_one(AssignOp op, const Tensor& value);
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) override;
  /// Throws kUnimplemented for rules with norms and more than one shard: a norm is of the whole
  /// variable.
  void update(std::span<Component* const> slots, const UpdateRule& rule, const Gradient& gradient,
              const UpdateScalars& scalars) override;

  /// For counters, in a step whose gradients the servers add up: adds `value` (the same on all
  /// workers) when the step is complete.
  void add_once(const Tensor& value);

  const std::vector<RemoteShard>& shards() const { return cache_->shards; }
  /// Rows `rows` (int64 [n], ascending) from the servers that have them: [n, ...].
  Tensor read_rows(const Tensor& rows) const;

 private:
  Tensor read_rows_once(const Tensor& rows) const;
  int num_shards() const { return static_cast<int>(cache_->shards.size()); }
  const RemoteShard& shard(int index) const {
    return cache_->shards[static_cast<std::size_t>(index)];
  }
  std::string name() const { return shard(0).spec.variable; }
  Tensor rows_of(const Tensor& whole, int shard) const;
  void change(int shard, Operation operation);

  const std::shared_ptr<ParameterServers> servers_;
  const std::shared_ptr<ReadCache> cache_;
};

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
