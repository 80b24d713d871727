// A variable of which each replica owns a shard.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
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
#include "tutti/core/sync.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// [count]: that of the elements of `shard`. `gradient`: of a variable of shape `whole`, or of the
/// shard already; none stays none.
Gradient gradient_of_shard(const Gradient& gradient, const Shape& whole, const Shard& shard);

/// The first pass of a rule with norms as a rule: writes the unscaled step of each element.
class DirectionRule final : public UpdateRule {
 public:
  /// `direction`: as many elements as apply() gets, of their type.
  DirectionRule(const UpdateRule& rule, void* direction) : rule_(rule), direction_(direction) {}
  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override { rule_.direct(args, direction_); }

 private:
  const UpdateRule& rule_;
  void* const direction_;
};

/// The second pass as a rule: its gradients are directions, its scalars have the norms.
class ApplyRule final : public UpdateRule {
 public:
  explicit ApplyRule(const UpdateRule& rule) : rule_(rule) {}
  std::string_view name() const override { return rule_.name(); }
  std::vector<SlotSpec> slots() const override { return rule_.slots(); }
  void apply(const UpdateArgs& args) const override { rule_.apply(args); }

 private:
  const UpdateRule& rule_;
};

/// For ApplyRule: with the norms of all elements of the variable and of their directions.
UpdateScalars scalars_with_norms(const UpdateScalars& scalars, const Tensor& weights,
                                 const Tensor& directions);

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
  /// For ReplicaShards.
  std::span<const Shard> ranges() const { return ranges_; }
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
  const std::atomic<std::uint64_t>& version() const { return version_; }

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

/// Remembers what a run reads and in which order; while the next run goes the same way, a read
/// begins the gather of the one after it. What it begins depends on nothing but this order, which
/// is that of all workers, so that all of them begin the same. A run that goes another way than the
/// one before reads the rest as it comes. Holds one value more than is read. Threads: read() one at
/// a time, forget() any.
class ReadAhead {
 public:
  explicit ReadAhead(std::shared_ptr<WorkerTeam> team) : team_(std::move(team)) {}

  /// Before a run, when the workers are connected.
  void begin_run();
  /// The whole of `shards` as `dtype`, on the host. All workers make the same calls.
  Tensor read(const Shards& shards, DType dtype);
  /// These shards are about to be destroyed.
  void forget(const Shards& shards);

 private:
  struct Read {
    const Shards* shards;
    DType dtype;
    bool operator==(const Read&) const = default;
  };
  struct Begun {
    Read read;
    std::uint64_t version;  // of the shards, then
    StartedGather gather;
  };
  Tensor take_begun(const Read& read) TUTTI_REQUIRES(mutex_);

  const std::shared_ptr<WorkerTeam> team_;
  Mutex mutex_;
  std::uint64_t connection_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<Read> reads_ TUTTI_GUARDED_BY(mutex_);   // of this run, so far
  std::vector<Read> before_ TUTTI_GUARDED_BY(mutex_);  // of the run before; none: it went elsewhere
  std::optional<Begun> begun_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
