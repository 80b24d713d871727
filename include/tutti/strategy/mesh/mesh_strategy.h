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
class ReadAhead;
struct TeamSetup;
}  // namespace internal

/// Options of MeshStrategy.
struct MeshOptions {
  /// Mesh of devices, over whose named axes tensors are sharded.
  DeviceMesh mesh = {{"data", 1}};
  /// Layouts of variables, by name. A layout determines which part of a variable each position
  /// computes with. Variables without a layout are not sharded.
  LayoutMap layout = {};
  /// Axes over which the first dimension of batches is sharded; empty: the first axis of the mesh.
  std::vector<std::string> batch_axes = {};
  /// Axis over which the second dimension of batches is sharded, such as the steps of sequences;
  /// empty: none. Around attention(), an all-to-all makes heads the sharded dimension.
  std::string sequence_axis = {};
  /// Axes over which the storage of variables and their slots is sharded in addition to `layout`,
  /// along the first unsharded dimension that is divisible by the size of these axes. A variable is
  /// gathered when it is read, and its gradient is reduce-scattered (ZeRO stage 3). A variable
  /// without such a dimension is replicated over these axes.
  std::vector<std::string> storage_axes = {};
  /// If true, values gathered over `storage_axes` are released after the forward pass and gathered
  /// again for the backward pass; if false, they are kept until the backward pass. Same as in
  /// FullyShardedOptions.
  bool reshard_after_forward = true;
  /// Number of blocks along each axis, a multiple of the axis's size. Each block is computed by its
  /// own thread. Meshes with the same blocks give bit-identical results. Axes that are not listed
  /// have one block per position.
  std::vector<MeshAxis> blocks = {};
  /// `devices`: one per position of the mesh, in row-major order; empty: cpu:0, cpu:1, ... Workers
  /// get consecutive positions in this order. `replicas` must not be set.
  LocalStrategyOptions local = {};
  /// Options for connecting the workers and for detecting failed ones.
  WorkerGroupOptions cluster = {};
};

/// Bytes sent in exchanges of one kind.
struct MeshTraffic {
  /// Total number of bytes sent by all positions.
  std::uint64_t bytes = 0;
  /// Bytes that the busiest position sent or received (whichever is larger), summed over all
  /// exchanges. If each position has its own link, exchange time grows with this number.
  std::uint64_t busiest_bytes = 0;
};

/// Costs of one step on one device of a mesh, computed from shapes by MeshStrategy::explain(). A
/// value type.
struct MeshReport {
  /// A variable and the size, in bytes, of the parts that the device stores.
  struct VariableCost {
    std::string name;
    Shape shape;         // shape of the full variable
    std::string layout;  // "[-, model]"
    std::uint64_t bytes = 0;
  };
  /// Exchanges that have the same kind, axes and source line. `bytes` is the number of bytes that
  /// the device sends for all `count` exchanged values. In a ring of P devices, it sends 2 * (P-1)
  /// / P times the size of the value for an all-reduce, and (P-1) / P times the size of the
  /// gathered value for an all-gather.
  struct CollectiveCost {
    std::string kind;               // "all_reduce", "all_gather", ... as in MeshStrategy::traffic()
    std::vector<std::string> axes;  // names of mesh axes
    std::uint64_t bytes = 0;
    int count = 0;
    std::string where;  // "model.cc:12"; a library line for exchanges by layers and tapes
  };
  /// Bytes of tensor elements, without the temporary memory of kernels and reductions and without
  /// allocator padding.
  struct Memory {
    std::uint64_t variables = 0;
    std::uint64_t slots = 0;        // optimizer slots
    std::uint64_t gradients = 0;    // the gradients that the optimizer applies
    std::uint64_t activations = 0;  // activations and other tensors of the step, at the peak
    /// Returns the sum of the members.
    std::uint64_t total() const { return variables + slots + gradients + activations; }
  };

  std::vector<VariableCost> variables;      // variables except slots, in order of creation
  std::vector<CollectiveCost> collectives;  // exchanges, in order of first use
  Memory memory;
  /// One sentence for each operation that gathers inputs because it cannot compute with shards, for
  /// each large variable without a layout, and for each layout that matches no variable.
  std::vector<std::string> warnings;

  /// Returns the sum of CollectiveCost::bytes.
  std::uint64_t bytes_sent() const;
  /// Returns the report as human-readable tables.
  std::string to_string() const;
};

/// Step function, as passed to run(); its argument is a global batch.
using MeshStep = std::function<void(const Batch&)>;

/// Strategy that runs each step as one replica on all positions of a mesh. Tensors have their
/// global shape; a position computes its part of a sharded tensor, and the positions exchange
/// values where an operation needs them. Batches of distribute_dataset() are sharded over the batch
/// axes, and variables as MeshOptions::layout specifies; the layouts of all other tensors follow
/// from these layouts.
///
/// num_replicas_in_sync() is 1: a loss is the mean over the global batch, and run() returns one
/// value. Every position calls the step function on its own thread. Reading elements on the host
/// (item(), to_doubles()) gathers them, so all positions must read the same tensors; control flow
/// may depend only on values that are equal on all positions. If the number of rows is not
/// divisible by the size of the batch axes, every position computes the full batch. merge_call()
/// throws kUnimplemented. Corresponds to keras.distribution.ModelParallel.
class MeshStrategy final : public Strategy {
 public:
  /// Throws kInvalidArgument if the numbers of devices and positions differ, or if a mesh size does
  /// not divide the number of blocks; kNotFound if an option names an axis that the mesh lacks; and
  /// kUnimplemented for XLA devices, for a cross_device_ops other than canonical, and for
  /// compression and non-finite policies.
  explicit MeshStrategy(MeshOptions options);
  /// Divides the positions among the cluster's chief and workers. All workers make the same calls.
  /// Throws the same errors as MultiWorkerMirroredStrategy, and kInvalidArgument if the positions
  /// of a worker do not form a block of the mesh.
  MeshStrategy(const ClusterResolver& resolver, MeshOptions options);
  /// Same as above, for workers that are already connected. Ignores options.cluster.
  MeshStrategy(std::unique_ptr<Communicator> communicator, MeshOptions options);
  ~MeshStrategy() override;

  int num_replicas_in_sync() const override { return 1; }
  std::span<const Device> replica_devices() const override;
  std::vector<Device> worker_devices() const override;
  int first_replica() const override { return 0; }
  /// Returns the host, which computes initial values before they are sharded.
  std::vector<Device> parameter_devices() const override { return {Device{}}; }
  const DeviceMesh& mesh() const { return options_.mesh; }
  /// Returns the layout of the value that a read of the variable returns; the layout names no axes
  /// if that value is not sharded. Throws kInvalidArgument for a variable of another strategy.
  Layout layout_of(const Variable& variable) const;
  /// Returns the bytes exchanged between positions since construction, by kind of exchange:
  /// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive", "broadcast" and
  /// "reduce". Each position counts as a separate device that sends the minimum: (n - 1) / n of the
  /// value in a reduce_scatter over n positions, and twice this in an all_reduce. Between workers,
  /// reduce is implemented with an all_reduce, which sends more than is counted. Call it outside
  /// run().
  std::map<std::string, MeshTraffic> traffic() const;

  /// Returns the costs of one step on a device without computing values: the calling thread runs
  /// the step once, as the first position, on tensors with a shape but no elements. `build` is
  /// called in the scope of this strategy; it creates the model and the optimizer, whose variables
  /// have no elements either, and returns the step. `batch`: the components of the global batch.
  /// Reading elements throws kFailedPrecondition, except for single numbers that the host set, such
  /// as the learning rate. Throws the same errors as the calls in the step, e.g. for a layout that
  /// does not divide a variable evenly, and kUnimplemented for dynamic loss scaling.
  MeshReport explain(const std::function<MeshStep()>& build, const std::vector<TensorSpec>& batch,
                     const SourceLocation& where = SourceLocation::current());
  /// Overload for a step on existing variables; does not change them.
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
  /// Runs the body as one mesh position, on the calling thread.
  void run_position(internal::LocalReplicaContext& local, internal::MeshGroups& groups,
                    const std::function<void(ReplicaContext&)>& body);
  /// Returns options.local with one device per position of this process.
  static LocalStrategyOptions options_of_blocks(const MeshOptions& options, int workers);
  static internal::TeamSetup joined(std::unique_ptr<Communicator> communicator,
                                    const MeshOptions& options);
  static internal::TeamSetup joined(const ClusterResolver& resolver, const MeshOptions& options);

  const std::shared_ptr<internal::WorkerTeam> team_;  // nullptr: this process has all positions
  const MeshOptions options_;
  const std::unique_ptr<const internal::MeshGrid> grid_;  // grid of blocks
  const std::unique_ptr<internal::MeshGroups> groups_;
  const std::shared_ptr<internal::ReadAhead> reads_;  // nullptr: this process has all positions
  // Bit masks of axes: bit i is set for axis i.
  const std::uint8_t batch_axes_;
  const std::uint8_t sequence_axes_;
  const std::uint8_t storage_axes_;
};

/// Returns options for data parallelism with sharded storage of variables: the mesh {{"data",
/// devices}}, whose axis is also the storage axis. Rajbhandari et al., "ZeRO: memory optimizations
/// toward training trillion parameter models", arXiv:1910.02054.
MeshOptions fully_sharded(int devices);
/// Same as fully_sharded(), but shards variables only within groups of `shards` consecutive
/// devices: the mesh {{"copies", copies}, {"data", shards}}. Corresponds to PyTorch's HYBRID_SHARD.
MeshOptions hybrid_sharded(int copies, int shards);

/// Returns the layouts of Megatron's tensor parallelism over `axis`. They shard the heads of
/// MultiHeadAttention, the columns of layers named "up", "gate" and "output", and the rows of
/// layers named "down" and "embedding". The forward and the backward pass each need one sum over
/// the axis after the attention and one after the feed-forward layer. Shoeybi et al., "Megatron-LM:
/// training multi-billion parameter language models using model parallelism", arXiv:1909.08053.
LayoutMap transformer_tensor_parallel(const std::string& axis = "model");

/// In a step of a MeshStrategy, returns `value` sharded by `layout`, which overrides the layout
/// that follows from other tensors. Differentiable. Outside such a step, returns `value`. Throws
/// kInvalidArgument for a layout that the mesh or the shape does not allow, and kNotFound for an
/// axis that the mesh lacks. Corresponds to keras.distribution.distribute_tensor.
Tensor relayout(const Tensor& value, const Layout& layout,
                const SourceLocation& where = SourceLocation::current());

}  // namespace tutti
