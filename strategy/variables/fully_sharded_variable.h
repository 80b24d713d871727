// A variable of which each replica owns a shard.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strategy/variables/mirrored_variable.h"
#include "strategy/variables/shards.h"

namespace tutti::internal {

/// To all but update() and reads one component that all replicas share, as of central storage.
class FullyShardedStorage final : public MirroredStorage, public ReplicaShards {
 public:
  FullyShardedStorage(const Tensor& initial_value, const VariableOptions& options,
                      const void* owner, std::shared_ptr<const Placement> placement,
                      int work_number, ShardUse use);
  FullyShardedStorage(const Shape& shape, DType dtype, const VariableOptions& options,
                      const void* owner, std::shared_ptr<const Placement> placement,
                      int work_number, ShardUse use, const Shards::MakeShard& make);
  ~FullyShardedStorage() override;

  /// The whole, on the replica's device; outside on that of the first replica here. With other
  /// workers a meeting of all replicas, unless the device keeps it, and outside a call of all
  /// workers.
  Tensor read() const override { return read_as(dtype()); }
  Tensor read_as(DType dtype) const override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  /// The shards that are not empty.
  std::vector<Tensor> local_components() const override;
  std::vector<Device> devices() const override;
  Variable create_slot(const std::string& slot_name, double initial_value) override;
  /// In a replica: its shard. Rules with norms are a meeting of all replicas.
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;

  std::optional<TensorPart> save_part() const override;
  void restore_part(const Tensor& elements) override { shards().assign_own(elements); }

  Shard shard(int replica) const override { return shards().range(replica); }
  std::span<const std::size_t> counts_of_workers() const override {
    return shards().counts_of_workers();
  }
  bool sums_shards() const override { return use_.sums_shards; }
  bool is_read_again() const override { return use_.reads_again; }
  std::uint64_t version() const override { return shards().version(); }

 private:
  Shards& shards() { return static_cast<Shards&>(component(0)); }
  const Shards& shards() const { return static_cast<const Shards&>(component(0)); }
  Tensor read_together(LocalReplicaContext& context, DType dtype) const;
  void update_with_norms(LocalReplicaContext& context, std::span<Shards* const> slots,
                         const UpdateRule& rule, const Gradient& gradient,
                         const UpdateScalars& scalars);
  void update_of_whole(LocalReplicaContext& context, std::span<Shards* const> slots,
                       const UpdateRule& rule, const Gradient& gradient,
                       const UpdateScalars& scalars);

  const ShardUse use_;
};

}  // namespace tutti::internal
