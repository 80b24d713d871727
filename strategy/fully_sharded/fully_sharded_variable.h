// A variable of which each replica owns a shard.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/replica_shards.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/distributed_variable.h"

namespace tutti::internal {

/// What replicas do with a variable besides owning a shard of it.
struct ShardUse {
  bool keeps_whole = false;  // a device keeps what it gathered until the next write
  bool sums_shards = true;   // ReplicaShards, as the next one
  bool reads_again = false;
  /// The workers whose replicas own the other shards; nullptr: all are in this process.
  std::shared_ptr<WorkerTeam> team = nullptr;
};

/// The elements of a variable: of each replica a shard, [count], on its device; here those of this
/// process. Shards begin at multiples of 64 bytes and differ by that at most, so that some of a
/// small variable are empty. Threads: update_shard() of different replicas at once; gather() at
/// once, while nothing is written, but with other workers one call at a time, which all make.
class Shards final : public Component {
 public:
  /// Makes the elements of a shard, [count], on a device.
  using MakeShard = std::function<Tensor(const Shard& shard, Device device)>;
  Shards(const Shape& shape, DType dtype, std::span<const Device> replica_devices,
         const ShardUse& use, std::string name, const MakeShard& make);

  /// The whole, on the device of the first replica of this process.
  Tensor read() const override { return gather(device()); }
  Device device() const override { return shards_.front().device(); }
  void assign(AssignOp op, const Tensor& value) override;
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) override;
  /// All shards, one after the other.
  void update(std::span<Component* const> slots, const UpdateRule& rule, const Gradient& gradient,
              const UpdateScalars& scalars) override;

  int num_shards() const { return static_cast<int>(shards_.size()); }
  const Shard& range(int index) const { return ranges_[static_cast<std::size_t>(index)]; }
  const VariableComponent& shard(int index) const {
    return shards_[static_cast<std::size_t>(index)];
  }
  Tensor gather(Device device) const;
  /// What the device keeps; undefined where it keeps nothing.
  Tensor kept(Device device) const;
  /// For all devices that keep values.
  void keep(const Tensor& whole) const;
  /// The elements of this process's shards, one after the other, [count], on the host.
  void assign_own(const Tensor& elements);
  /// By the rule, with the same shard of each of `slots`. `gradient`: of the whole, or of this
  /// shard.
  void update_shard(int index, std::span<Shards* const> slots, const UpdateRule& rule,
                    const Gradient& gradient, const UpdateScalars& scalars);
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

 private:
  /// What a device has gathered.
  struct Kept {
    Device device;
    Mutex mutex;
    Tensor whole TUTTI_GUARDED_BY(mutex);
  };

  Tensor gathered(Device device) const;
  void gather_here(std::byte* to) const;
  void gather_of_workers(std::byte* to) const;
  Kept* find_kept(Device device) const;
  /// Before a write of all shards: no device keeps what was.
  void note_write();
  static void forget(Kept& kept);

  const Shape shape_;
  const DType dtype_;
  const std::string name_;
  const std::shared_ptr<WorkerTeam> team_;
  std::vector<std::size_t> counts_;  // of each worker's shards together, with a team
  std::vector<Shard> ranges_;
  std::vector<VariableComponent> shards_;
  std::vector<std::unique_ptr<Kept>> kept_;  // of each device once; empty: none keeps it
  std::atomic<std::uint64_t> version_{0};
};

/// To all but update() and reads one component that all replicas share, as of central storage.
class FullyShardedStorage final : public MirroredStorage, public ReplicaShards {
 public:
  FullyShardedStorage(const Tensor& initial_value, const VariableOptions& options,
                      const void* owner, std::shared_ptr<const Placement> placement,
                      int work_number, ShardUse use);
  FullyShardedStorage(const Shape& shape, DType dtype, const VariableOptions& options,
                      const void* owner, std::shared_ptr<const Placement> placement,
                      int work_number, ShardUse use, const Shards::MakeShard& make);

  /// The whole, on the replica's device; outside on that of the first replica here. With other
  /// workers a meeting of all replicas, unless the device keeps it, and outside a call of all
  /// workers.
  Tensor read() const override;
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
  bool sums_shards() const override { return use_.sums_shards; }
  bool is_read_again() const override { return use_.reads_again; }
  std::uint64_t version() const override { return shards().version(); }

 private:
  Shards& shards() { return static_cast<Shards&>(component(0)); }
  const Shards& shards() const { return static_cast<const Shards&>(component(0)); }
  Tensor read_together(LocalReplicaContext& context) const;
  void update_with_norms(LocalReplicaContext& context, std::span<Shards* const> slots,
                         const UpdateRule& rule, const Gradient& gradient,
                         const UpdateScalars& scalars);

  const ShardUse use_;
};

}  // namespace tutti::internal
