// Variable on parameter servers: one logical value in shards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/client/parameter_servers.h"
#include "strategy/variables/mirrored_variable.h"

namespace tutti::internal {

/// Component that is read by joining the shards, and written by sending each server the rows of its
/// shard. If workers train together, all of them call assign() and scatter(), but only the first
/// worker changes the values; update() and assign_by_one() are called by one worker, after which
/// all call ParameterServers::meet(). Thread-safe.
class ShardedComponent final : public Component {
 public:
  /// Requires: the shards have been created.
  ShardedComponent(std::shared_ptr<ParameterServers> servers, std::vector<RemoteShard> shards);

  Tensor read() const override { return servers_->read(cache_); }
  Device device() const override { return Device{}; }
  void assign(AssignOp op, const Tensor& value) override;
  void assign_by_one(AssignOp op, const Tensor& value);
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) override;
  /// Throws kUnimplemented for a rule that uses norms if there is more than one shard, because a
  /// norm is computed over the whole variable.
  void update(std::span<Component* const> slots, const UpdateRule& rule, const Gradient& gradient,
              const UpdateScalars& scalars) override;

  /// Adds `value` (equal on all workers) once, when the step is complete. Used for counters in
  /// steps whose gradients the servers sum.
  void add_once(const Tensor& value);

  const std::vector<RemoteShard>& shards() const { return cache_->shards; }
  /// Returns the rows with these indices (int64 [n], ascending) from the servers that store them,
  /// as a tensor [n, ...].
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

/// Variable whose values all replicas share; assignments in replicas are combined as in a mirrored
/// variable. Corresponds to tf's AggregatingVariable and ShardedVariable.
class ShardedStorage final : public MirroredStorage {
 public:
  /// Requires: the shards were created. `placement` is central, on the host.
  ShardedStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner,
                 std::shared_ptr<const Placement> placement, int work_number,
                 std::shared_ptr<ParameterServers> servers, std::vector<RemoteShard> shards);

  bool reads_rows() const override { return true; }
  Tensor read_rows(const Tensor& rows) const override { return remote().read_rows(rows); }
  void assign_replicated(AssignOp op, const Tensor& value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  /// If workers train independently, only the first worker's call has an effect.
  void restore(const TensorLookup& lookup) override;
  /// Creates a slot whose rows are on the same servers as this variable's rows.
  Variable create_slot(const std::string& name, double initial_value) override;

  const std::vector<RemoteShard>& shards() const { return remote().shards(); }
  const ShardedComponent& remote() const {
    return static_cast<const ShardedComponent&>(component(0));
  }

 private:
  ShardedComponent& remote() { return static_cast<ShardedComponent&>(component(0)); }

  const std::shared_ptr<ParameterServers> servers_;
};

/// Creates the shards on their servers and waits until they exist. `initial` is the value of the
/// full variable.
void create_shards(ParameterServers& servers, const std::vector<RemoteShard>& shards,
                   const std::variant<ValueGenerator, Tensor>& initial);

}  // namespace tutti::internal
