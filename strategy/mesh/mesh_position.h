// A position of a mesh during one step: its parts of sharded tensors, and exchanges with others.
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

/// Value of a sharded tensor: the part of one position. Belongs to the thread of its position until
/// the step ends; the whole is gathered then, unless the value has been destroyed.
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
  /// Collective at its first call within the step. Throws kFailedPrecondition on another thread.
  void materialize(std::byte* to) override;

 private:
  friend class MeshPosition;
  Sharding sharding_;  // no longer partial once an operation needed the sum
  Tensor local_;       // undefined after the step
  const TensorSpec spec_;
  Tensor whole_;            // defined after the step
  MeshPosition* position_;  // nullptr after the step
  const std::uint64_t number_;
  Mutex mutex_;
  bool is_materialized_ TUTTI_GUARDED_BY(mutex_) = false;
};

/// A tensor as one position has it.
struct ShardedTensor {
  Sharding sharding;
  Tensor local;
  TensorSpec spec;                                // of the whole
  std::shared_ptr<ShardedValue> value = nullptr;  // that keeps its sum, once it is made
};

/// A position's value of a MeshSum.
struct PositionSum {
  AxisSet axes = 0;
  AxisSet parts = 0;
  int dim = 0;
  int root = -1;  // the only index of the group that uses the sum; -1: all do
  Tensor own;
};

/// Context of the one replica of a mesh strategy, on the thread of a position: all positions run
/// the step, and each carries out its part of the operations on sharded tensors. All functions that
/// exchange values are collective.
class MeshPosition final : public ReplicaContext, public OpPartitioner {
 public:
  /// `batch_axes`: those over which batches are cut. The references must outlive it.
  MeshPosition(LocalReplicaContext& local, const MeshGrid& grid, MeshGroups& groups,
               AxisSet batch_axes);
  ~MeshPosition() override;
  MeshPosition(const MeshPosition&) = delete;
  MeshPosition& operator=(const MeshPosition&) = delete;

  /// Returns the position whose step this thread runs; nullptr if there is none.
  static MeshPosition* current();
  /// Same as current(). Throws kFailedPrecondition, naming variable and method, in a step of
  /// another mesh strategy than that which made the variable.
  static MeshPosition* current(const VariableStorage& variable, std::string_view method);

  const MeshGrid& grid() const { return grid_; }
  /// Returns the number of the position in the mesh.
  int number() const { return number_; }
  LocalReplicaContext& local() { return local_; }

  /// Returns what this position has of the value.
  ShardedTensor part_of(const Tensor& value) const;
  /// Returns a tensor of the global shape; `local` itself if the sharding is whole.
  Tensor tensor_of(const ShardedTensor& value);
  /// Returns the position's part of `value` under another sharding, which may only be partial over
  /// axes over which `value` is.
  Tensor local_as(const ShardedTensor& value, const Sharding& sharding);
  Tensor whole(const Tensor& value) { return local_as(part_of(value), {}); }
  /// Returns the value under another sharding; tapes record an identity.
  Tensor relayout(const Tensor& value, const Sharding& sharding);
  /// Starts sums, which are in the same order on all positions. Those over workers run while the
  /// step continues.
  std::shared_ptr<MeshSums> start_sums(std::span<const PositionSum> sums);
  /// Returns the results of all these sums.
  std::vector<Tensor> join(std::span<const std::shared_ptr<MeshSums>> started);

  // Functions of local tensors. Positions pass values of one shape; `kind` and `argument` are
  // compared, and determine the bytes that are counted.

  /// Returns the sum over the group, or this position's part of it.
  Tensor summed(const PositionSum& sum);
  /// Returns the combination of the group's values. Not SUM.
  Tensor combined(ReduceOp op, const Tensor& value, AxisSet axes);
  /// Returns the group's values, by index, on their devices.
  std::vector<Tensor> exchange(const Tensor& value, AxisSet axes,
                               ExchangeKind kind = ExchangeKind::kAllGather, int argument = 0);
  /// Returns the part of a value that is cut along `to` instead of `from`.
  Tensor all_to_all(const Tensor& value, int from, int to, AxisSet axes);
  /// Returns this position's part of a dimension.
  Tensor cut(const Tensor& value, int dim, AxisSet axes) const;
  Tensor joined(std::vector<Tensor> parts, int dim) const;
  /// Throws kInvalidArgument on all positions if shapes or dtypes of the values differ.
  void require_same_specs(std::span<const Tensor> values);
  /// While it lives, this position runs a function of local tensors, and refuses sharded ones.
  class LocalScope;
  /// Waits for all positions; `action` runs once, with the arguments of those of this process.
  template <class Argument>
  void exchange_arguments(RendezvousHeader header, Argument& argument,
                          const std::function<void(const std::vector<Argument*>&)>& action) {
    const StrategyModeScope as_local({&strategy(), &local_, false});
    local_.meet<Argument>(std::move(header), argument, action);
  }
  /// Waits until all positions have called it.
  void meet(RendezvousKind kind);
  /// Gathers the values that outlive the step. Called when its body has ended.
  void end_step();

  // OpPartitioner.
  std::optional<std::vector<Tensor>> run(const OpCall& call) override;

  // ReplicaContext: one replica, with which nothing is exchanged.
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
  /// Returns the axes over which each factor of the rule is cut.
  Assignment assign_axes(const OpCall& call, const OpRule& rule,
                         std::span<const ShardedTensor> inputs) const;
  /// Returns the inputs of the operation in these shardings.
  std::vector<Tensor> resharded(const OpCall& call, std::span<const ShardedTensor> inputs,
                                std::span<const Sharding> wanted);
  std::vector<Tensor> run_by_rule(const OpCall& call, const OpRule& rule,
                                  std::span<const ShardedTensor> inputs);
  std::vector<Tensor> run_whole(const OpCall& call, std::span<const ShardedTensor> inputs);
  /// Returns the outputs of an operation that is carried out as several others; nothing if it is
  /// not one of these.
  std::optional<std::vector<Tensor>> run_composed(const OpCall& call,
                                                  std::span<const ShardedTensor> inputs);
  Tensor dropped_out(const OpCall& call, const ShardedTensor& x);
  /// Indices into a dimension of which each position has a part.
  struct OwnIndices {
    Tensor indices;         // within this position's part; 0 for those of others
    Tensor are_own;         // bool
    std::int64_t size = 0;  // of the part
  };
  OwnIndices own_indices(const OpCall& call, const ShardedTensor& indices, const Sharding& sharding,
                         std::int64_t count, AxisSet axes);
  /// gather() from rows that are sharded: each position adds the rows that it has.
  Tensor looked_up(const OpCall& call, std::span<const ShardedTensor> inputs);
  /// Attention whose sequences are sharded; nothing if they are not, or the heads cannot be.
  std::optional<std::vector<Tensor>> attended(const OpCall& call,
                                              std::span<const ShardedTensor> inputs);
  /// Returns 1 for the class of each label and 0 elsewhere, sharded like the logits.
  Tensor hits(const OpCall& call, std::span<const ShardedTensor> inputs);
  std::vector<Tensor> run_on_parts(OpCall call) const;
  /// Throws kInvalidArgument naming `who` in a function of local tensors.
  void require_global(std::string_view who) const;
  void count(const PositionSum& sum);

  LocalReplicaContext& local_;
  const MeshGrid& grid_;
  MeshGroups& groups_;
  const AxisSet batch_axes_;
  const int number_;
  std::map<std::uint64_t, ShardedTensor> batch_;   // parts of the batch, by the ids of the wholes
  std::map<std::uint64_t, ShardedValue*> values_;  // living ones, by number
  std::uint64_t num_values_ = 0;
  std::optional<Sharding> wanted_;  // of the result of the identity that relayout() dispatches
  std::string_view local_call_;     // that runs a function of local tensors; empty: none
};

class MeshPosition::LocalScope {
 public:
  /// `call` must outlive it.
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
