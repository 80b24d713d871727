// Strategy that shards computation: one step runs on all positions of a mesh of devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/control/join_options.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/mesh/device_mesh.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/tensor/op.h"

namespace tutti {

class ClusterResolver;
namespace internal {
class LocalReplicaContext;
class MeshGrid;
class MeshGroups;
struct TeamSetup;
}  // namespace internal

/// Options of MeshStrategy.
struct MeshOptions {
  /// Axes over which tensors are sharded.
  DeviceMesh mesh = {{"data", 1}};
  /// Layouts of variables, by name: the part with which a position computes. Variables without one
  /// are not sharded.
  LayoutMap layout = {};
  /// Axes over which the first dimension of batches is sharded; empty: the first axis of the mesh.
  std::vector<std::string> batch_axes = {};
  /// Axes over which variables and their slots are stored in parts beyond `layout`: along the first
  /// dimension that they divide and that is not sharded. A variable is gathered when it is read,
  /// and its gradient is reduce-scattered (ZeRO stage 3). One without such a dimension is copied.
  std::vector<std::string> storage_axes = {};
  /// Number of blocks along each axis, which determines the bits: a mesh whose sizes divide them
  /// computes the same blocks. Axes that are not listed have one block per position.
  std::vector<MeshAxis> blocks = {};
  /// `devices`: one per position of the mesh, in row-major order; empty: cpu:0, cpu:1, ...
  /// Positions are divided over workers in this order. `replicas` must not be set.
  LocalStrategyOptions local = {};
  /// How workers find and watch each other.
  WorkerGroupOptions cluster = {};
};

/// Bytes that travelled in exchanges of one kind.
struct MeshTraffic {
  /// Sum over all positions of the bytes that they sent.
  std::uint64_t bytes = 0;
  /// Sum over exchanges of the bytes that the busiest position sent, or received if more. The time
  /// of the exchanges grows with it if each position has its own link.
  std::uint64_t busiest_bytes = 0;
};

/// Costs of one step for each device of a mesh, as MeshStrategy::explain() finds them from shapes.
/// Bytes are those of one device. A value type.
struct MeshReport {
  /// A variable, with the bytes of the parts that the device stores.
  struct VariableCost {
    std::string name;
    Shape shape;         // of the whole
    std::string layout;  // "[-, model]"
    std::uint64_t bytes = 0;
  };
  /// Values that the same line exchanges over the same axes. `bytes`: those that the device sends,
  /// of all `count` values, if P devices exchange a value in a ring: for an all-reduce 2 (P-1)/P of
  /// the value, for an all-gather (P-1)/P of the whole.
  struct CollectiveCost {
    std::string kind;               // "all_reduce", "all_gather", ... as in MeshStrategy::traffic()
    std::vector<std::string> axes;  // names of mesh axes
    std::uint64_t bytes = 0;
    int count = 0;
    std::string where;  // "model.cc:12"; a line of the library for what a layer or a tape does
  };
  /// Bytes of elements. Does not include what kernels and sums need meanwhile, and the rounding of
  /// allocators.
  struct Memory {
    std::uint64_t variables = 0;
    std::uint64_t slots = 0;        // of the optimizer
    std::uint64_t gradients = 0;    // that the optimizer applies
    std::uint64_t activations = 0;  // and all else that the step makes, where memory is largest
    /// Returns the sum of all.
    std::uint64_t total() const { return variables + slots + gradients + activations; }
  };

  std::vector<VariableCost> variables;      // without slots, in order of creation
  std::vector<CollectiveCost> collectives;  // in order of first use
  Memory memory;
  /// Sentences on operations that gather inputs because they cannot compute with parts, on large
  /// variables that no layout covers, and on layouts without a variable.
  std::vector<std::string> warnings;

  /// Returns the sum of CollectiveCost::bytes.
  std::uint64_t bytes_sent() const;
  /// Returns tables for people to read.
  std::string to_string() const;
};

/// Step on a global batch, as run() calls it.
using MeshStep = std::function<void(const Batch&)>;

/// Runs each step once, as one replica, on all positions of a mesh. Tensors have their global
/// shape; a position computes its part of a sharded one, and the positions exchange values where an
/// operation needs it. Batches of distribute_dataset() are sharded over the batch axes, variables
/// by MeshOptions::layout; layouts of all other tensors follow.
///
/// num_replicas_in_sync() is 1: a loss is the mean over the global batch, and run() returns one
/// value. Every position calls the step function, on a thread of its own. Reading elements on the
/// host (item(), to_doubles()) gathers them, so all positions must read the same values; control
/// flow may only depend on such values. A batch that the axes do not divide is computed whole on
/// every position. merge_call() is refused. keras.distribution.ModelParallel.
class MeshStrategy final : public Strategy {
 public:
  /// Throws kInvalidArgument for another number of devices than positions, an axis that the mesh
  /// lacks, and blocks that a size of the mesh does not divide; kUnimplemented for XLA devices, for
  /// a cross_device_ops other than canonical, and for compression and non-finite policies.
  explicit MeshStrategy(MeshOptions options);
  /// Divides the positions over the cluster's chief and workers. All workers make the same calls.
  /// Throws as MultiWorkerMirroredStrategy does, and kInvalidArgument if the positions of a worker
  /// do not form a block of the mesh.
  MeshStrategy(const ClusterResolver& resolver, MeshOptions options);
  /// Same as above, for workers that are already connected. Ignores options.cluster.
  MeshStrategy(std::unique_ptr<Communicator> communicator, MeshOptions options);
  ~MeshStrategy() override;

  int num_replicas_in_sync() const override { return 1; }
  std::span<const Device> replica_devices() const override;
  int first_replica() const override { return 0; }
  /// Returns the host, which makes the initial values that are then cut.
  std::vector<Device> parameter_devices() const override { return {Device{}}; }
  const DeviceMesh& mesh() const { return options_.mesh; }
  /// Returns the layout with which a variable is read; without axes if it is not sharded. Throws
  /// kInvalidArgument if it is not of this strategy.
  Layout layout_of(const Variable& variable) const;
  /// Returns the bytes between positions since the strategy was made, by kind of exchange:
  /// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive", "broadcast" and
  /// "reduce". Each position is counted as a device of its own that sends what it must: (n - 1) / n
  /// of the value in a reduce_scatter of n positions, and twice this in an all_reduce. Between
  /// workers, send_receive and broadcast travel as an all_gather, and reduce as an all_reduce,
  /// which need more. Call it outside run().
  std::map<std::string, MeshTraffic> traffic() const;

  /// Returns what one step costs a device, without running it: the step is called once, by the
  /// calling thread as the first position, on tensors that have a shape and no elements. `build` is
  /// called in the scope of this strategy; it makes the model and the optimizer, whose variables
  /// have no elements either, and returns the step. `batch`: the components of the global batch.
  /// Reads of elements throw kFailedPrecondition, except those of single numbers that the host set,
  /// as the learning rate. Throws what the calls themselves throw, as for a layout that does not
  /// divide a variable, and kUnimplemented for dynamic loss scaling.
  MeshReport explain(const std::function<MeshStep()>& build, const std::vector<TensorSpec>& batch,
                     const SourceLocation& where = SourceLocation::current());
  /// Overload for a step on variables that exist. Changes none of them.
  MeshReport explain(const MeshStep& step, const std::vector<TensorSpec>& batch,
                     const SourceLocation& where = SourceLocation::current());

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;
  void complete_input_plan(InputPlan& plan) override;
  std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                             std::string_view who) override;

 private:
  MeshStrategy(internal::TeamSetup setup, MeshOptions options);
  /// Runs the body as a position of the mesh, on the thread that calls it.
  void run_position(internal::LocalReplicaContext& local, internal::MeshGroups& groups,
                    const std::function<void(ReplicaContext&)>& body);
  /// Returns the options of the threads of this process's positions.
  static LocalStrategyOptions options_of_blocks(const MeshOptions& options, int workers);
  static internal::TeamSetup joined(std::unique_ptr<Communicator> communicator,
                                    const MeshOptions& options);
  static internal::TeamSetup joined(const ClusterResolver& resolver, const MeshOptions& options);

  const std::shared_ptr<internal::WorkerTeam> team_;  // nullptr: this process has all positions
  const MeshOptions options_;
  const std::unique_ptr<const internal::MeshGrid> grid_;  // of blocks
  const std::unique_ptr<internal::MeshGroups> groups_;
  // Bit i: axis i.
  const std::uint8_t batch_axes_;
  const std::uint8_t storage_axes_;
};

/// Returns options for data parallelism whose variables are stored in parts: the mesh
/// {{"data", devices}} with its storage axis. Rajbhandari et al., "ZeRO: memory optimizations
/// toward training trillion parameter models", arXiv:1910.02054.
MeshOptions fully_sharded(int devices);
/// Same as fully_sharded(), but with variables in parts over groups of `shards` neighbours only:
/// the mesh {{"copies", copies}, {"data", shards}}. PyTorch's HYBRID_SHARD.
MeshOptions hybrid_sharded(int copies, int shards);

/// Returns the layouts of Megatron's tensor parallelism for layers of these names, over `axis`:
/// heads of MultiHeadAttention; columns of "up" and "gate", then rows of "down"; rows of an
/// "embedding", and columns of an "output". One sum over the axis after the attention and one after
/// the feed-forward layer, in each direction. Shoeybi et al., "Megatron-LM: training multi-billion
/// parameter language models using model parallelism", arXiv:1909.08053.
LayoutMap transformer_tensor_parallel(const std::string& axis = "model");

/// In a step of a MeshStrategy, returns `value` sharded by `layout`: a differentiable identity, for
/// values whose layout should not merely follow from others. Elsewhere returns `value`. Throws
/// kInvalidArgument for a layout that the mesh or the shape does not allow.
/// keras.distribution.distribute_tensor.
Tensor relayout(const Tensor& value, const Layout& layout,
                const SourceLocation& where = SourceLocation::current());

}  // namespace tutti
