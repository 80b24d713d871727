// The elements of a variable in shards, one per replica.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/replica_shards.h"
#include "strategy/variables/distributed_variable.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class ReadAhead;

/// What replicas do with a variable besides owning a shard of it.
struct ShardUse {
  bool keeps_whole = false;  // a device keeps what it gathered until the next write
  bool sums_shards = true;   // ReplicaShards, as the next one
  bool reads_again = false;
  /// The workers whose replicas own the other shards; nullptr: all are in this process.
  std::shared_ptr<WorkerTeam> team = nullptr;
  std::shared_ptr<ReadAhead> reads = nullptr;  // of variables of a team; slots have none
};

/// The shards of all workers on their way to this one.
struct StartedGather {
  /// On the host. Once. Throws errors of Communicator.
  Tensor wait();

  WorkerTeam& team;
  Tensor own;  // the elements of this worker's shards
  MutableTensor whole;
  CollectiveHandle handle;  // destroyed first: it waits, and memory is used until then
};

/// [count] of `value`, whatever its shape, whose elements it shares.
Tensor elements_of_shard(const Tensor& value, const Shard& shard);

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
  Tensor read() const override { return gather(device(), dtype_); }
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
  /// As ReplicaShards.
  std::span<const std::size_t> counts_of_workers() const { return counts_; }
  /// With a team: begins what gather() does. All workers make the same calls.
  StartedGather start_gather(DType dtype) const;
  /// The whole as `dtype`, to which elements are cast before they move.
  Tensor gather(Device device, DType dtype) const;
  /// What the device keeps; undefined where it keeps nothing of which `dtype` can be made.
  Tensor kept(Device device, DType dtype) const;
  /// For all devices that keep values.
  void keep(const Tensor& whole) const;
  /// The elements of this process's shards, one after the other, [count], on the host.
  void assign_own(const Tensor& elements);
  /// By the rule, with the same shard of each of `slots`. `gradient`: of the whole, or of this
  /// shard.
  void update_shard(int index, std::span<Shards* const> slots, const UpdateRule& rule,
                    const Gradient& gradient, const UpdateScalars& scalars);
  /// This shard's elements of `whole`, which is on its device.
  void assign_shard(int index, const Tensor& whole);
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

 private:
  /// What a device has gathered, in each type that it was read in.
  struct Kept {
    Device device;
    Mutex mutex;
    std::vector<Tensor> wholes TUTTI_GUARDED_BY(mutex);
  };

  Tensor gathered(Device device, DType dtype) const;
  void gather_here(const MutableTensor& to) const;
  Kept* find_kept(Device device) const;
  Tensor find_whole(const Kept& kept, DType dtype) const TUTTI_REQUIRES(kept.mutex);
  /// Before a write of all shards: no device keeps what was.
  void note_write();
  /// Before a write of one: its device does not; other replicas see to theirs.
  void note_write_of(int index);
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

}  // namespace tutti::internal
