// One position of a mesh during a step: parts of sharded tensors, and exchanges between positions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "strategy/mesh/mesh_groups.h"
#include "strategy/mesh/op_rules.h"
#include "strategy/mesh/sharding.h"
#include "strategy/replicas/local_replica.h"
#include "strategy/replicas/strategy_mode.h"
#include "tensor/step_hooks.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class MeshPosition;

/// One position's part of a sharded tensor. Until the step ends, only the position's thread uses
/// it. The end of the step gathers the global value, if the part still exists.
class ShardedValue final : public LazyValue {
 public:
  ShardedValue(MeshPosition& position, std::uint64_t number, const Sharding& sharding, Tensor local,
               TensorSpec spec)
      : sharding_(sharding),
        local_(std::move(local)),
        spec_(std::move(spec)),
        position_(&position),
        number_(number) {}
  ~ShardedValue() override;

  const Sharding& sharding() const { return sharding_; }
  const Tensor& local() const { return local_; }
  const TensorSpec& spec() const { return spec_; }
  /// The first call within the step is collective. Throws kFailedPrecondition on another thread.
  void materialize(std::byte* to) override;

 private:
  friend class MeshPosition;
  Sharding sharding_;  // partial axes are removed when an operation needs the sum
  Tensor local_;       // undefined after the step
  const TensorSpec spec_;
  Tensor whole_;            // full value; defined after the step
  MeshPosition* position_;  // nullptr after the step
  const std::uint64_t number_;
  Mutex mutex_;
  bool is_materialized_ TUTTI_GUARDED_BY(mutex_) = false;
};

/// A tensor as stored at one mesh position: its local value and its sharding.
struct ShardedTensor {
  Sharding sharding;
  Tensor local;
  TensorSpec spec;                                // spec of the global tensor
  std::shared_ptr<ShardedValue> value = nullptr;  // receives the sum of a partial value
};

/// One position's term of a MeshSum.
struct PositionSum {
  AxisSet axes = 0;
  AxisSet parts = 0;
  int dim = 0;
  int root = -1;  // index of the only member that uses the sum; -1: all members use it
  Tensor own;
};

/// Context of the only replica of a mesh strategy, on the thread of one position. All positions run
/// the step, and each computes its part of the operations on sharded tensors. All functions that
/// exchange values are collective.
class MeshPosition final : public ReplicaContext, public OpPartitioner {
 public:
  /// `batch_axes` and `sequence_axes` are the mesh axes over which the first and the second
  /// dimension of batches are sharded. The references must outlive the object.
  MeshPosition(LocalReplicaContext& local, const MeshGrid& grid, MeshGroups& groups,
               AxisSet batch_axes, AxisSet sequence_axes);
  ~MeshPosition() override;
  MeshPosition(const MeshPosition&) = delete;
  MeshPosition& operator=(const MeshPosition&) = delete;

  /// Returns the position whose step this thread runs; nullptr if there is none.
  static MeshPosition* current();
  /// Same as current(), but throws kFailedPrecondition, naming the variable and the method, if the
  /// thread is running a step of a mesh strategy that did not create the variable.
  static MeshPosition* current(const VariableStorage& variable, std::string_view method);

  const MeshGrid& grid() const { return grid_; }
  /// Returns the index of the position in the mesh.
  int number() const { return number_; }
  LocalReplicaContext& local() { return local_; }

  /// Returns this position's shard of the value.
  ShardedTensor part_of(const Tensor& value) const;
  /// Returns a tensor of the global shape, or `value.local` itself if each position has all
  /// elements.
  Tensor tensor_of(const ShardedTensor& value);
  /// Returns the position's part of `value` under another sharding. `sharding` may be partial only
  /// over axes over which `value` is partial.
  Tensor local_as(const ShardedTensor& value, const Sharding& sharding);
  Tensor whole(const Tensor& value) { return local_as(part_of(value), {}); }
  /// Returns the value under another sharding; tapes record an identity.
  Tensor relayout(const Tensor& value, const Sharding& sharding);
  /// Starts the sums without waiting for them. All positions pass the same sums in the same order.
  /// Sums over workers run while the step continues.
  std::shared_ptr<MeshSums> start_sums(std::span<const PositionSum> sums);
  /// Waits for all of these sums and returns their results.
  std::vector<Tensor> join(std::span<const std::shared_ptr<MeshSums>> started);

  // Functions on local tensors. All positions pass values of the same shape. All other arguments
  // must be equal on all positions.

  /// Returns the sum over the group, or this position's part of it.
  Tensor summed(const PositionSum& sum);
  /// Returns the group's values combined by `op`, which must not be SUM.
  Tensor combined(ReduceOp op, const Tensor& value, AxisSet axes);
  /// Returns the group's values, in index order, on their devices.
  std::vector<Tensor> exchange(const Tensor& value, AxisSet axes);
  /// Same as exchange(), but for the parts of a variable, which `reads` may have gathered in
  /// advance.
  std::vector<Tensor> exchange_ahead(const Tensor& value, AxisSet axes,
                                     const GatheredVariable& variable, ReadAhead& reads);
  /// Returns the value that is sent to this position. Member senders[i] of the group sends to
  /// member i.
  Tensor received(const Tensor& value, AxisSet axes, ExchangeKind kind,
                  const std::vector<int>& senders);
  /// Exchanges shards, so that the value is sharded along dimension `to` instead of dimension
  /// `from`. Returns this position's new shard.
  Tensor all_to_all(const Tensor& value, int from, int to, AxisSet axes);
  /// Returns true if exchange(value, axes) needs values from other workers.
  bool needs_workers(AxisSet axes) const { return groups_.needs_workers(axes); }
  /// Returns this position's part of `value` along dimension `dim`.
  Tensor cut(const Tensor& value, int dim, AxisSet axes) const;
  Tensor joined(std::vector<Tensor> parts, int dim) const;
  /// Throws kInvalidArgument on all positions if the values' shapes or dtypes differ.
  void require_same_specs(std::span<const Tensor> values);
  /// Scope in which this position runs a function on local tensors, and in which sharded tensors
  /// are rejected.
  class LocalScope;
  /// Waits for all positions, and runs `action` once, with the arguments of this process's
  /// positions.
  template <class Argument>
  void exchange_arguments(RendezvousHeader header, Argument& argument,
                          const std::function<void(const std::vector<Argument*>&)>& action) {
    const StrategyModeScope as_local({&strategy(), &local_, false});
    local_.meet<Argument>(std::move(header), argument, action);
  }
  /// Waits until all positions have called this function.
  void meet(RendezvousKind kind);
  /// Gathers the values that outlive the step. Called after the step's body.
  void end_step();

  // Implements OpPartitioner.
  std::optional<std::vector<Tensor>> run(const OpCall& call) override;

  // Implements ReplicaContext. There is one replica, so its collectives exchange nothing.
  int replica_id() const override { return 0; }
  int num_replicas_in_sync() const override { return 1; }
  Device device() const override { return local_.device(); }
  Strategy& strategy() const override { return local_.strategy(); }

 protected:
  int local_index() const override { return local_.local_replica(); }
  std::shared_ptr<const void> merge_erased(const void* local, const std::type_info& type,
                                           const ErasedMerge& merge, SourceLocation where) override;
  std::vector<Gradient> all_reduce_values(ReduceOp op, std::span<const Gradient> values,
                                          SourceLocation where) override;
  Gathered all_gather_value(const Tensor& value, int axis, SourceLocation where) override;
  void note_batch(const Batch& batch) override;
  void note_result(double result) override;

 private:
  friend class ShardedValue;

  struct Assignment;
  /// Returns the mesh axes over which each factor of the rule is sharded.
  Assignment assign_axes(const OpCall& call, const OpRule& rule,
                         std::span<const ShardedTensor> inputs) const;
  /// Returns the operation's inputs in the given shardings.
  std::vector<Tensor> resharded(const OpCall& call, std::span<const ShardedTensor> inputs,
                                std::span<const Sharding> wanted);
  std::vector<Tensor> run_by_rule(const OpCall& call, const OpRule& rule,
                                  std::span<const ShardedTensor> inputs);
  std::vector<Tensor> run_whole(const OpCall& call, std::span<const ShardedTensor> inputs);
  /// Returns the outputs of an operation that is composed of several other operations; nullopt if
  /// `call` is not such an operation.
  std::optional<std::vector<Tensor>> run_composed(const OpCall& call,
                                                  std::span<const ShardedTensor> inputs);
  Tensor dropped_out(const OpCall& call, const ShardedTensor& x);
  /// Indices into a sharded dimension, as seen by one position.
  struct OwnIndices {
    Tensor indices;         // relative to this position's part; 0 for indices outside it
    Tensor are_own;         // bool: the index is within the part
    std::int64_t size = 0;  // size of the part
  };
  OwnIndices own_indices(const OpCall& call, const ShardedTensor& indices, const Sharding& sharding,
                         std::int64_t count, AxisSet axes);
  /// Computes gather() from sharded rows: each position contributes its own rows to a sum.
  Tensor looked_up(const OpCall& call, std::span<const ShardedTensor> inputs);
  /// Computes attention over sharded sequences. Returns nullopt if no sequence is sharded, or if
  /// the heads cannot be sharded instead.
  std::optional<std::vector<Tensor>> attended(const OpCall& call,
                                              std::span<const ShardedTensor> inputs);
  /// Returns the one-hot labels, sharded like the logits.
  Tensor hits(const OpCall& call, std::span<const ShardedTensor> inputs);
  std::vector<Tensor> run_on_parts(OpCall call) const;
  /// Throws kInvalidArgument, naming `who`, if a function on local tensors is running.
  void require_global(std::string_view who) const;
  std::vector<Tensor> gathered(
      const Tensor& value, AxisSet axes,
      const std::function<std::vector<std::vector<Tensor>>(const std::vector<Tensor>& own,
                                                           const std::string& call)>& gather);
  void count(const PositionSum& sum);

  LocalReplicaContext& local_;
  const MeshGrid& grid_;
  MeshGroups& groups_;
  const AxisSet batch_axes_;
  const AxisSet sequence_axes_;
  const int number_;
  std::map<std::uint64_t, ShardedTensor> batch_;   // parts of the batch, by tensor id
  std::map<std::uint64_t, ShardedValue*> values_;  // existing values, by number
  std::uint64_t num_values_ = 0;
  std::optional<Sharding> wanted_;  // sharding that relayout() requests for the identity's output
  std::string_view local_call_;     // running call to a function on local tensors, or empty
};

class MeshPosition::LocalScope {
 public:
  /// `call` must outlive the scope.
  LocalScope(MeshPosition& position, std::string_view call) : position_(position) {
    position.require_global(call);
    position.local_call_ = call;
  }
  ~LocalScope() { position_.local_call_ = {}; }
  LocalScope& operator=(LocalScope&&) = delete;

 private:
  MeshPosition& position_;
};

}  // namespace tutti::internal
