// Sharded variables, with one shard per replica.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/replica_shards.h"
#include "strategy/variables/distributed_variable.h"
#include "strategy/variables/mirrored_variable.h"
#include "strategy/variables/read_ahead.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// Returns the elements of `gradient` that belong to `shard`, as a gradient of shape [count].
/// `gradient` has the shape `whole`, or [count] if it already is the shard's gradient. Returns an
/// empty gradient if `gradient` is empty.
Gradient gradient_of_shard(const Gradient& gradient, const Shape& whole, const Shard& shard);

/// First pass of a rule that uses norms: writes the unscaled step of each element.
class DirectionRule final : public UpdateRule {
 public:
  /// `direction` is memory for as many elements as apply() receives, of the same type.
  DirectionRule(const UpdateRule& rule, void* direction) : rule_(rule), direction_(direction) {}
  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override { rule_.direct(args, direction_); }

 private:
  const UpdateRule& rule_;
  void* const direction_;
};

/// Second pass of a rule that uses norms: takes directions as gradients, and norms as scalars.
class ApplyRule final : public UpdateRule {
 public:
  explicit ApplyRule(const UpdateRule& rule) : rule_(rule) {}
  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override { rule_.apply(args); }

 private:
  const UpdateRule& rule_;
};

/// Returns `scalars` for ApplyRule, with the norms of the variable and of its directions.
UpdateScalars scalars_with_norms(const UpdateScalars& scalars, const Tensor& weights,
                                 const Tensor& directions);

/// Options for a sharded variable: what its replicas do besides owning shards.
struct ShardUse {
  bool keeps_whole = false;  // true if devices keep a gathered value until the next write
  bool sums_shards = true;   // see ReplicaShards::sums_shards()
  bool reads_again = false;  // see VariableStorage::released_version()
  /// Workers whose replicas own the other shards; nullptr if all replicas are in this process.
  std::shared_ptr<WorkerTeam> team = nullptr;
  std::shared_ptr<ReadAhead> reads = nullptr;  // nullptr without a team, and for slots
};

/// Returns the elements of `shard` as a view of shape [count], without copying. `value` may have
/// any shape.
Tensor elements_of_shard(const Tensor& value, const Shard& shard);

/// Elements of a variable as an array [count] that is split into one shard per replica, on its
/// device. This object holds the shards of this process. Shards begin at multiples of 64 bytes and
/// their sizes differ by at most 64 bytes, so small variables have empty shards. Calls of
/// update_shard() for different shards may run concurrently, and so may calls of gather() while no
/// shard is written. With several workers, gather() is collective, one call at a time.
class Shards final : public Component, public GatheredVariable {
 public:
  /// Creates the elements of a shard, [count], on a device.
  using MakeShard = std::function<Tensor(const Shard& shard, Device device)>;
  Shards(const Shape& shape, DType dtype, std::span<const Device> replica_devices,
         const ShardUse& use, std::string name, const MakeShard& make);

  /// Returns the full value, on the device of the first replica of this process.
  Tensor read() const override { return gather(device(), dtype_); }
  Device device() const override { return shards_.front().device(); }
  void assign(AssignOp op, const Tensor& value) override;
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) override;
  /// Updates all shards in turn.
  void update(std::span<Component* const> slots, const UpdateRule& rule, const Gradient& gradient,
              const UpdateScalars& scalars) override;

  int num_shards() const { return static_cast<int>(shards_.size()); }
  const Shard& range(int index) const { return ranges_[static_cast<std::size_t>(index)]; }
  const VariableComponent& shard(int index) const {
    return shards_[static_cast<std::size_t>(index)];
  }
  /// Return the data that ReplicaShards needs.
  std::span<const Shard> ranges() const { return ranges_; }
  std::span<const std::size_t> counts_of_workers() const { return counts_; }
  /// Requires: there are other workers.
  StartedGather start_gather(DType dtype) const override;
  /// Returns the full value as `dtype`; elements are cast before they are copied.
  Tensor gather(Device device, DType dtype) const;
  /// Returns the value kept on the device; undefined if the device keeps none that can be cast to
  /// `dtype`.
  Tensor kept(Device device, DType dtype) const;
  /// Caches `whole` on all devices that keep gathered values.
  void keep(const Tensor& whole) const;
  /// Sets this process's shards to `elements`, a tensor [count] on the host, in shard order.
  void assign_own(const Tensor& elements);
  /// Applies the rule to a shard and the corresponding shard of each of `slots`. `gradient` is the
  /// gradient of the full variable or of this shard.
  void update_shard(int index, std::span<Shards* const> slots, const UpdateRule& rule,
                    const Gradient& gradient, const UpdateScalars& scalars);
  /// Sets shard `index` to its part of `whole`, which must be on the shard's device.
  void assign_shard(int index, const Tensor& whole);

 private:
  /// Gathered values on one device, one for each type in which the variable was read.
  struct Kept {
    Device device;
    Mutex mutex;
    std::vector<Tensor> wholes TUTTI_GUARDED_BY(mutex);
  };

  Tensor gathered(Device device, DType dtype) const;
  void gather_here(const MutableTensor& to) const;
  Kept* find_kept(Device device) const;
  Tensor find_whole(const Kept& kept, DType dtype) const TUTTI_REQUIRES(kept.mutex);
  /// Called before a write of all shards: drops the gathered values that devices keep.
  void note_write();
  /// Called before a write to one shard: drops only the values that are cached on that shard's
  /// device.
  void note_write_of(int index);
  static void forget(Kept& kept);

  const Shape shape_;
  const DType dtype_;
  const std::string name_;
  const std::shared_ptr<WorkerTeam> team_;
  std::vector<std::size_t> counts_;  // with a team: number of elements of each worker's shards
  std::vector<Shard> ranges_;
  std::vector<VariableComponent> shards_;
  std::vector<std::unique_ptr<Kept>> kept_;  // one per distinct device; empty: values are not kept
};

/// Storage of a variable whose replicas own its shards. Except in update() and reads, it acts as
/// one component that all replicas share (central storage).
class FullyShardedStorage final : public MirroredStorage, public ReplicaShards {
 public:
  FullyShardedStorage(const Tensor& initial_value, const VariableOptions& options,
                      const void* owner, std::shared_ptr<const Placement> placement,
                      int work_number, ShardUse use);
  FullyShardedStorage(const Shape& shape, DType dtype, const VariableOptions& options,
                      const void* owner, std::shared_ptr<const Placement> placement,
                      int work_number, ShardUse use, const Shards::MakeShard& make);
  ~FullyShardedStorage() override;

  /// Returns the full value on the device of the calling replica or, outside run(), of the first
  /// local replica. If there are other workers, this is a rendezvous of all replicas unless the
  /// device keeps the value; outside run() it is collective.
  Tensor read() const override { return read_as(dtype()); }
  Tensor read_as(DType dtype) const override;
  std::optional<std::uint64_t> released_version() const override;
  void assign_replicated(AssignOp op, const Tensor& value) override;
  /// Returns the shards that are not empty.
  std::vector<Tensor> local_components() const override;
  std::vector<Device> devices() const override;
  Variable create_slot(const std::string& slot_name, double initial_value) override;
  /// In a replica, updates the replica's shard; with a rule that uses norms, this is a rendezvous.
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;

  std::optional<TensorPart> save_part() const override;
  void restore_part(const Tensor& elements) override { shards().assign_own(elements); }

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
